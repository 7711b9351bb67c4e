// Training whose attention cuDNN computes, here the fake one on the fake GPU: the numbers of our
// kernels within roundings, the same bits for every placement, within the memory that is planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/cuda_training.h"
#include "tests/fake_cuda/fake_cudnn.h"

namespace headrace {
namespace {

using device::AttentionChoice;
using device::testing::FakeCuda;
using device::testing::FakeCudnn;
using ::testing::HasSubstr;

/// A fake GPU with its fake cuDNN.
struct Machine {
  engine::EngineOptions with(engine::EngineOptions options, AttentionChoice attention) const {
    const auto open = [made = cudnn](std::string&) { return made; };
    engine::use_gpu(options, test::fake_gpu(gpu, device::cuda::open_cufile_library, open),
                    {.attention = attention});
    return options;
  }
  int64_t runs() const { return cudnn->calls("execute"); }

  std::shared_ptr<FakeCuda> gpu = std::make_shared<FakeCuda>();
  std::shared_ptr<FakeCudnn> cudnn = std::make_shared<FakeCudnn>(gpu);
};

engine::EngineOptions placed(Bytes device, Tier home) {
  engine::EngineOptions options;
  options.memory.device_memory = device;
  options.memory.host_memory = kMiB * 64;
  options.memory.offload_param = home;
  options.memory.offload_optimizer = home;
  options.memory.host_activations = true;
  options.vocab_tile = 64;
  return options;
}

class CudnnTraining : public testing::Test {
 protected:
  CudnnTraining() { model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder_.path()); }

  test::CurveSettings settings(DType dtype) const { return test::gpu_curve(folder_.path(), dtype); }
  /// Trains; the runs of cuDNN's plans.
  static int64_t train(const test::CurveSettings& settings, const engine::EngineOptions& options,
                       AttentionChoice attention, test::Curve& curve) {
    const Machine machine;
    curve = train_curve(settings, machine.with(options, attention));
    EXPECT_EQ(machine.cudnn->live_objects(), 0);
    EXPECT_EQ(machine.gpu->live_objects(), 0);
    return machine.runs();
  }

  test::TemporaryFolder folder_;
};

TEST_F(CudnnTraining, HasTheNumbersOfOurKernelsForEveryPlacement) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const test::CurveSettings curve_settings = settings(dtype);
    const engine::EngineOptions first = placed(kMiB * 64, Tier::host);
    test::Curve own;
    EXPECT_EQ(train(curve_settings, first, AttentionChoice::own, own), 0);
    test::Curve expected;
    const int64_t runs = train(curve_settings, first, AttentionChoice::cudnn, expected);
    // 4 steps of 2 micro-batches through 3 blocks.
    EXPECT_GE(runs, 4 * 2 * 3 * 2);
    EXPECT_NE(expected, own) << "they round alike";
    for (size_t step = 0; step < own.losses.size(); ++step) {
      EXPECT_NEAR(expected.losses[step], own.losses[step], dtype == DType::bf16 ? 2e-2 : 4e-3);
    }
    for (const engine::EngineOptions& options :
         {placed(kMiB * 4, Tier::host), placed(kMiB * 4, Tier::nvme)}) {
      test::Curve curve;
      train(curve_settings, options, AttentionChoice::cudnn, curve);
      test::expect_same_bits(curve, expected);
      EXPECT_EQ(curve, expected);
    }
  }
}

/// The scratch that cuDNN asks for is in the plan: the least budget is enough.
TEST_F(CudnnTraining, FitsTheLeastBudget) {
  const test::CurveSettings curve_settings = settings(DType::bf16);
  engine::EngineOptions options = placed(kMiB * 64, Tier::nvme);
  options.memory.device_memory =
      least_budgets(curve_settings, Machine().with(options, AttentionChoice::cudnn)).device;
  test::Curve curve;
  EXPECT_GE(train(curve_settings, options, AttentionChoice::cudnn, curve), 4 * 2 * 3);
}

TEST_F(CudnnTraining, PackedDocumentsAreOurs) {
  test::CurveSettings curve_settings = settings(DType::bf16);
  curve_settings.shape.is_packed = true;
  curve_settings.steps = test::random_steps(7, 4, 2, curve_settings.shape, 203);
  const engine::EngineOptions options = placed(kMiB * 64, Tier::host);
  test::Curve own;
  test::Curve curve;
  train(curve_settings, options, AttentionChoice::own, own);
  EXPECT_EQ(train(curve_settings, options, AttentionChoice::cudnn, curve), 0);
  EXPECT_EQ(curve, own);
}

TEST_F(CudnnTraining, TheRunSaysWhoComputesIt) {
  const Machine machine;
  engine::EngineOptions options =
      machine.with(placed(kMiB * 64, Tier::host), AttentionChoice::cudnn);
  options.dtype = DType::bf16;
  options.shape = {2, 24};
  const engine::Engine engine(test::tiny_gpu_model(), options);
  EXPECT_THAT(engine.attention_description(),
              HasSubstr("2 x 24 tokens, 4/2 heads of 24 in bf16: forward by cuDNN 9.19.0"));
}

}  // namespace
}  // namespace headrace
