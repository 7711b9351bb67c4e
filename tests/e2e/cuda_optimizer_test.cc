// The optimizer on the CUDA device, here the fake one: state that lives there is updated there,
// with the bits of the CPU's optimizer.
#include <gtest/gtest.h>

#include <limits>

#include "e2e/cuda_training.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;

engine::EngineOptions options_with(std::optional<Tier> optimizer, double ratio) {
  engine::EngineOptions options;
  options.memory.host_memory = kMiB * 64;
  options.memory.device_memory = kMiB * 64;
  options.memory.offload_optimizer = optimizer;
  options.memory.offload_ratio = ratio;
  options.vocab_tile = 64;
  return options;
}

struct Case {
  const char* name;
  DType dtype = DType::bf16;
  engine::OptimizerKind optimizer = engine::OptimizerKind::adam;
  double momentum = 0;
  bool tied = false;
  int64_t micro_batches = 2;
  bool split_master = true;
  DType moments = DType::f32;
  bool fp32_gradients = false;
  bool clips = false;
  bool waits_for_norm = true;
  int64_t sub_group = 1'000'000'000;
  bool is_protected = false;  ///< device memory, from the CPU
};

const Case kCases[] = {
    {.name = "adam", .is_protected = true},
    {.name = "tied", .tied = true, .sub_group = 65536, .is_protected = true},
    {.name = "tied_fp32_sums", .tied = true, .fp32_gradients = true, .clips = true},
    {.name = "f32", .dtype = DType::f32, .micro_batches = 1, .clips = true},
    {.name = "f32_sums", .dtype = DType::f32, .tied = true},
    {.name = "f16", .dtype = DType::f16, .clips = true},
    {.name = "whole_master", .micro_batches = 1, .split_master = false, .moments = DType::bf16},
    {.name = "during_backward", .micro_batches = 1, .waits_for_norm = false},
    {.name = "adagrad", .optimizer = engine::OptimizerKind::adagrad},
    {.name = "lion", .optimizer = engine::OptimizerKind::lion, .moments = DType::bf16},
    {.name = "sgd", .optimizer = engine::OptimizerKind::sgd},
    {.name = "momentum", .optimizer = engine::OptimizerKind::sgd, .momentum = 0.9},
};

class CudaOptimizer : public testing::TestWithParam<Case> {
 protected:
  static engine::EngineOptions options_of(const Case& each, std::optional<Tier> optimizer,
                                          double ratio) {
    engine::EngineOptions options = options_with(optimizer, ratio);
    options.memory.state.split_master = each.split_master;
    options.memory.state.moment_dtype = each.moments;
    options.memory.fp32_gradients = each.fp32_gradients;
    options.memory.updates_need_norm = each.waits_for_norm;
    options.memory.sub_group_size = Elements(each.sub_group);
    return options;
  }
};

/// The passes are the same on the same device, so that all bits must be.
TEST_P(CudaOptimizer, OnTheDeviceHasTheBitsOfTheCpu) {
  const Case& each = GetParam();
  const test::TemporaryFolder folder;
  model::ModelConfig config = test::tiny_gpu_model(1101);
  config.tie_word_embeddings = each.tied;
  model::init_model(config, DType::f32, 3, folder.path());
  test::CurveSettings settings = test::gpu_curve(folder.path(), each.dtype, 1101);
  settings.steps = test::random_steps(7, 3, each.micro_batches, settings.shape, 1101);
  settings.optimizer = each.optimizer;
  settings.momentum = each.momentum;
  settings.gradient_clipping = each.clips ? 1e-2 : each.waits_for_norm ? 100 : 0;
  settings.check_finite = each.waits_for_norm;
  const auto curve_with = [&](std::optional<Tier> optimizer, double ratio) {
    FakeCuda::Options gpu;
    gpu.protects_memory = each.is_protected;
    const auto fake = std::make_shared<FakeCuda>(gpu);
    test::Curve curve =
        train_curve(settings, test::on_gpu(options_of(each, optimizer, ratio), fake));
    EXPECT_EQ(fake->live_objects(), 0);
    return curve;
  };
  const test::Curve by_cpu = curve_with(Tier::host, 1);
  EXPECT_NE(by_cpu.losses.front(), by_cpu.losses.back());
  EXPECT_EQ(curve_with({}, 1), by_cpu) << "all of it on the device";
  EXPECT_EQ(curve_with(Tier::host, 0.4), by_cpu) << "a part of it";
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaOptimizer, testing::ValuesIn(kCases),
                         [](const auto& made) { return std::string(made.param.name); });

/// A step whose loss scale makes its gradients infinite changes nothing, on the device either.
TEST(CudaOptimizerRun, SkippedStepsChangeNothing) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const test::TemporaryFolder folder;
    model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
    test::CurveSettings settings = test::gpu_curve(folder.path(), dtype);
    settings.adjust = [&](size_t step, engine::StepNumbers& numbers) {
      if (step == 1) {
        numbers.loss_scale = dtype == DType::f16 ? 1e15 : std::numeric_limits<double>::infinity();
      }
    };
    const auto curve_with = [&](std::optional<Tier> optimizer) {
      return train_curve(settings,
                         test::on_gpu(options_with(optimizer, 1), std::make_shared<FakeCuda>()));
    };
    const test::Curve by_cpu = curve_with(Tier::host);
    EXPECT_FALSE(std::isfinite(by_cpu.gradient_norms[1]));
    EXPECT_TRUE(std::isfinite(by_cpu.losses[3]));
    const test::Curve on_device = curve_with({});
    EXPECT_EQ(on_device.losses, by_cpu.losses);
    EXPECT_TRUE(on_device.weights == by_cpu.weights);
  }
}

/// Without a check, what is not finite goes into the weights, and the step says so.
TEST(CudaOptimizerRun, WeightsThatAreNotFiniteAreReported) {
  const test::TemporaryFolder folder;
  model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
  const model::CheckpointReader reader(folder.path());
  const test::TemporaryFolder nvme;
  for (const bool spoiled : {false, true}) {
    engine::EngineOptions options = test::on_gpu(options_with({}, 1), std::make_shared<FakeCuda>());
    const test::CurveSettings settings = test::gpu_curve(folder.path(), DType::bf16);
    options.dtype = settings.dtype;
    options.shape = settings.shape;
    options.memory.micro_batches = 2;
    options.memory.updates_need_norm = false;
    options.nvme_paths = {nvme.path()};
    engine::Engine engine(reader.config(), options);
    engine.load(reader, [](Elements) {});
    engine::StepNumbers numbers;
    numbers.micro_batches = 2;
    numbers.check_finite = false;
    numbers.optimizer.lr = spoiled ? std::numeric_limits<float>::infinity() : 1e-3;
    engine.train_step(settings.steps[0], numbers);
    EXPECT_EQ(numbers.weights_finite(), !spoiled);
    EXPECT_EQ(numbers.device_updates_finite, !spoiled);
    EXPECT_TRUE(numbers.host_updates_finite);
  }
}

}  // namespace
}  // namespace headrace
