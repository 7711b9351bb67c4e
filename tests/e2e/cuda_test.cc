// Training on the CUDA device, here the fake one: the numbers of the CPU within what another order
// of sums may change, the same bits for every placement, and no step that waits for the host where
// memory is registered.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "device/cuda/cuda_device.h"
#include "device/gpu.h"
#include "e2e/training_harness.h"
#include "engine/gpu_options.h"
#include "model/model_config.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;

model::ModelConfig tiny_model() {
  model::ModelConfig config;
  config.family = model::Family::qwen3;
  config.vocab_size = 203;
  config.hidden_size = 64;
  config.intermediate_size = 136;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 24;
  config.max_positions = 64;
  config.qk_norm = true;
  return config;
}

test::CurveSettings curve_of(const std::string& folder, DType dtype) {
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = {2, 24};
  settings.loss_scale = dtype == DType::f16 ? 1024 : 1;
  settings.steps = test::random_steps(7, 4, 2, settings.shape, 203);
  settings.learning_rates.assign(settings.steps.size(), 1e-3);
  return settings;
}

struct Placement {
  const char* name;
  int64_t device_kib;
  std::optional<Tier> param;
  std::optional<Tier> optimizer;
  bool host_activations;
};

// Without a setting the optimizer's state is in the host all the same: the CPU updates it.
constexpr Placement kPlacements[] = {
    {"weights on the device", 64 << 10, {}, {}, false},
    {"cpu offload", 4096, Tier::host, Tier::host, true},
    {"nvme offload", 4096, Tier::nvme, Tier::nvme, true},
};

engine::EngineOptions options_of(const Placement& placement) {
  engine::EngineOptions options;
  options.memory.host_memory = kMiB * 64;
  options.memory.device_memory = kKiB * placement.device_kib;
  options.memory.offload_param = placement.param;
  options.memory.offload_optimizer = placement.optimizer;
  options.memory.host_activations = placement.host_activations;
  options.vocab_tile = 64;
  return options;
}

engine::EngineOptions on(engine::EngineOptions options, const std::shared_ptr<FakeCuda>& fake) {
  device::GpuFound found;
  found.description = "the fake GPU";
  found.make_device = [fake] { return std::make_unique<device::cuda::CudaDevice>(fake, 0); };
  engine::use_gpu(options, found);
  return options;
}

/// A loss errs by its roundings, which training then spreads.
double loss_tolerance(DType dtype) {
  return dtype == DType::f32 ? 2e-5 : dtype == DType::bf16 ? 2e-2 : 4e-3;
}

void expect_close(const test::Curve& curve, const test::Curve& reference, DType dtype) {
  ASSERT_EQ(curve.losses.size(), reference.losses.size());
  for (size_t step = 0; step < curve.losses.size(); ++step) {
    EXPECT_NEAR(curve.losses[step], reference.losses[step], loss_tolerance(dtype)) << step;
    EXPECT_NEAR(curve.gradient_norms[step], reference.gradient_norms[step],
                loss_tolerance(dtype) * 5 * reference.gradient_norms[step])
        << step;
  }
  EXPECT_NE(curve.losses.front(), curve.losses.back());
}

class CudaTraining : public testing::TestWithParam<DType> {};

TEST_P(CudaTraining, HasTheNumbersOfTheCpuForEveryPlacement) {
  const test::TemporaryFolder folder;
  model::init_model(tiny_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = curve_of(folder.path(), GetParam());
  const test::Curve reference = train_curve(settings, options_of(kPlacements[1]));
  std::optional<test::Curve> first;
  for (const Placement& placement : kPlacements) {
    SCOPED_TRACE(placement.name);
    const auto fake = std::make_shared<FakeCuda>();
    const test::Curve curve = train_curve(settings, on(options_of(placement), fake));
    expect_close(curve, reference, GetParam());
    if (!first) {
      first = curve;
    }
    EXPECT_EQ(curve, *first);
    EXPECT_EQ(fake->live_objects(), 0);
    EXPECT_GT(fake->calls("lt_multiply"), 0);
    // Tokens, labels and the loss of each pass are the only bytes in memory that is not registered:
    // two for the embedding, two for the head, two for the gradient of the embedding, one back. The
    // rope table comes once.
    const auto passes = static_cast<int64_t>(settings.steps.size() * 2);
    EXPECT_LE(fake->pageable_copies(), passes * 7 + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaTraining, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& made) { return std::string(to_string(made.param)); });

TEST(CudaRun, UnregisteredHostMemoryChangesNoBit) {
  const test::TemporaryFolder folder;
  model::init_model(tiny_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = curve_of(folder.path(), DType::bf16);
  FakeCuda::Options refusing;
  refusing.can_register = false;
  const auto fake = std::make_shared<FakeCuda>();
  const auto unregistered = std::make_shared<FakeCuda>(refusing);
  EXPECT_EQ(train_curve(settings, on(options_of(kPlacements[2]), fake)),
            train_curve(settings, on(options_of(kPlacements[2]), unregistered)));
  EXPECT_GT(unregistered->pageable_copies(), fake->pageable_copies());
}

TEST(CudaRun, AFailureOnTheDeviceEndsTheStepWithItsCause) {
  const test::TemporaryFolder folder;
  model::init_model(tiny_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = curve_of(folder.path(), DType::f32);
  const auto fake = std::make_shared<FakeCuda>();
  fake->fail_on_device(200, 700);
  try {
    train_curve(settings, on(options_of(kPlacements[1]), fake));
    FAIL() << "trained on a broken device";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cudaErrorIllegalAddress"), std::string::npos)
        << error.what();
  }
}

TEST(CudaRun, BudgetOfTheDeviceIsWhatIsFreeLessHeadroom) {
  device::GpuFound found;
  found.memory = kGiB * 100;
  found.free_memory = kGiB * 90;
  engine::EngineOptions options;
  engine::use_gpu(options, found);
  EXPECT_EQ(options.memory.device_memory, kGiB * 88);
  options.memory.device_memory = kGiB * 10;
  engine::use_gpu(options, found);
  EXPECT_EQ(options.memory.device_memory, kGiB * 10);
}

TEST(CudaRun, StateOnDiskIsOverwrittenWhateverTheRatioSays) {
  engine::EngineOptions options;
  engine::MemoryRequest& memory = options.memory;
  memory.wants_in_place = true;
  memory.offload_param = memory.offload_optimizer = Tier::nvme;
  memory.device_memory = kGiB;
  memory.offload_ratio = 0.5;
  EXPECT_FALSE(memory.in_place()) << "on an emulated device half of the optimizer stays there";
  engine::use_gpu(options, device::GpuFound());
  EXPECT_TRUE(memory.in_place());
}

/// The real GPU, where the tests with the label gpu ask for it.
TEST(GpuTraining, HasTheNumbersOfTheCpuForEveryPlacement) {
  if (std::getenv("HEADRACE_TEST_GPU") == nullptr) {
    GTEST_SKIP() << "ctest -L gpu runs it";
  }
  const device::GpuSearch search = device::find_gpu();
  if (!search.gpu) {
    GTEST_SKIP() << "SKIPPED: " << search.refusal;
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const test::TemporaryFolder folder;
    model::init_model(tiny_model(), DType::f32, 3, folder.path());
    const test::CurveSettings settings = curve_of(folder.path(), dtype);
    const test::Curve reference = train_curve(settings, options_of(kPlacements[1]));
    std::optional<test::Curve> first;
    for (const Placement& placement : kPlacements) {
      SCOPED_TRACE(placement.name);
      engine::EngineOptions options = options_of(placement);
      engine::use_gpu(options, *search.gpu);
      const test::Curve curve = train_curve(settings, options);
      expect_close(curve, reference, dtype);
      first = first ? first : curve;
      EXPECT_EQ(curve, *first);
    }
  }
}

}  // namespace
}  // namespace headrace
