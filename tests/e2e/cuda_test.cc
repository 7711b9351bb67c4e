// Training on the CUDA device, here the fake one: the numbers of the CPU within what another order
// of sums may change, the same bits for every placement, and no step that waits for the host where
// memory is registered.
#include <gtest/gtest.h>

#include <cmath>

#include "e2e/cuda_training.h"
#include "support/real_gpu.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;

struct Placement {
  const char* name;
  int64_t device_kib;
  std::optional<Tier> param;
  std::optional<Tier> optimizer;
  bool host_activations;
  double ratio = 1;
};

// Where state stays on the device, the device updates it.
constexpr Placement kPlacements[] = {
    {"all on the device", 64 << 10, {}, {}, false},
    {"cpu offload", 4096, Tier::host, Tier::host, true},
    {"nvme offload", 4096, Tier::nvme, Tier::nvme, true},
    {"half of the optimizer on the device", 6144, Tier::host, Tier::host, true, 0.5},
};

engine::EngineOptions options_of(const Placement& placement) {
  engine::EngineOptions options;
  options.memory.host_memory = kMiB * 64;
  options.memory.device_memory = kKiB * placement.device_kib;
  options.memory.offload_param = placement.param;
  options.memory.offload_optimizer = placement.optimizer;
  options.memory.host_activations = placement.host_activations;
  options.memory.offload_ratio = placement.ratio;
  options.vocab_tile = 64;
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
  model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = test::gpu_curve(folder.path(), GetParam());
  const test::Curve reference = train_curve(settings, options_of(kPlacements[1]));
  std::optional<test::Curve> first;
  for (const Placement& placement : kPlacements) {
    SCOPED_TRACE(placement.name);
    const auto fake = std::make_shared<FakeCuda>();
    const test::Curve curve = train_curve(settings, test::on_gpu(options_of(placement), fake));
    expect_close(curve, reference, GetParam());
    if (!first) {
      first = curve;
    }
    EXPECT_EQ(curve, *first);
    EXPECT_EQ(fake->live_objects(), 0);
    EXPECT_GT(fake->calls("lt_multiply"), 0);
    // Tokens, labels and the loss of each pass are the only bytes in memory that is not registered:
    // two for the embedding, two for the head, two for the gradient of the embedding, one back; and
    // once a step whether all updates are finite. The rope table comes once.
    const auto steps = static_cast<int64_t>(settings.steps.size());
    EXPECT_LE(fake->pageable_copies(), steps * (2 * 7 + 1) + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaTraining, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& made) { return std::string(to_string(made.param)); });

TEST(CudaRun, UnregisteredHostMemoryChangesNoBit) {
  const test::TemporaryFolder folder;
  model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = test::gpu_curve(folder.path(), DType::bf16);
  FakeCuda::Options refusing;
  refusing.can_register = false;
  const auto fake = std::make_shared<FakeCuda>();
  const auto unregistered = std::make_shared<FakeCuda>(refusing);
  EXPECT_EQ(train_curve(settings, test::on_gpu(options_of(kPlacements[2]), fake)),
            train_curve(settings, test::on_gpu(options_of(kPlacements[2]), unregistered)));
  EXPECT_GT(unregistered->pageable_copies(), fake->pageable_copies());
}

TEST(CudaRun, AFailureOnTheDeviceEndsTheStepWithItsCause) {
  const test::TemporaryFolder folder;
  model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = test::gpu_curve(folder.path(), DType::f32);
  const auto fake = std::make_shared<FakeCuda>();
  fake->fail_on_device(200, 700);
  try {
    train_curve(settings, test::on_gpu(options_of(kPlacements[1]), fake));
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
  engine::use_gpu(options, found, {});
  EXPECT_EQ(options.memory.device_memory, kGiB * 88);
  options.memory.device_memory = kGiB * 10;
  engine::use_gpu(options, found, {});
  EXPECT_EQ(options.memory.device_memory, kGiB * 10);
}

TEST(CudaRun, Tf32IsUsedWhereAskedFor) {
  const test::TemporaryFolder folder;
  model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = test::gpu_curve(folder.path(), DType::f32);
  const auto curve_with = [&](bool tf32) {
    return train_curve(
        settings, test::on_gpu(options_of(kPlacements[0]), std::make_shared<FakeCuda>(), {tf32}));
  };
  const test::Curve exact = curve_with(false);
  const test::Curve rounded = curve_with(true);
  EXPECT_NE(rounded.losses.front(), exact.losses.front());
  for (size_t step = 0; step < exact.losses.size(); ++step) {
    EXPECT_NEAR(rounded.losses[step], exact.losses[step], loss_tolerance(DType::f16)) << step;
  }
}

/// The device's steady step comes out of graphs, and no bit tells.
TEST(CudaRun, GraphsChangeNoBit) {
  const test::TemporaryFolder folder;
  model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = test::gpu_curve(folder.path(), DType::bf16);
  for (const Placement& placement : {kPlacements[0], kPlacements[2]}) {
    SCOPED_TRACE(placement.name);
    const auto plain = std::make_shared<FakeCuda>();
    const auto graphs = std::make_shared<FakeCuda>();
    device::GpuOptions how;
    how.graphs.use = device::GraphUse::on;
    EXPECT_EQ(train_curve(settings, test::on_gpu(options_of(placement), plain)),
              train_curve(settings, test::on_gpu(options_of(placement), graphs, how)));
    EXPECT_GT(graphs->calls("graph_launch"), 0);
    EXPECT_LT(graphs->calls("lt_multiply"), plain->calls("lt_multiply") * 2 / 3);
    EXPECT_LT(graphs->calls("launch"), plain->calls("launch"));
    EXPECT_EQ(graphs->live_objects(), 0);
  }
}

TEST(CudaRun, HostMemoryIsOnTheGpusNodeWhereTheGpuUpdates) {
  const std::vector<tiers::NumaNode> nodes = {{0, kGiB * 64, 8}, {1, kGiB * 32, 8}};
  engine::MemoryRequest request;
  request.host_memory = kGiB * 32;
  EXPECT_EQ(engine::memory_node_for(1, request, nodes), 1);
  EXPECT_EQ(engine::memory_node_for({}, request, nodes), std::nullopt);
  EXPECT_EQ(engine::memory_node_for(0, request, {nodes[0]}), std::nullopt) << "there is one";
  EXPECT_EQ(engine::memory_node_for(7, request, nodes), std::nullopt) << "not ours to use";
  request.host_memory = kGiB * 33;
  EXPECT_EQ(engine::memory_node_for(0, request, nodes), 0);
  EXPECT_EQ(engine::memory_node_for(1, request, nodes), std::nullopt) << "too small";
  request.offload_optimizer = Tier::host;
  EXPECT_EQ(engine::memory_node_for(0, request, nodes), std::nullopt) << "the CPU updates";
  request.offload_optimizer = {};
  request.state.moment_dtype = DType::u8;
  EXPECT_EQ(engine::memory_node_for(0, request, nodes), std::nullopt) << "8-bit moments are its";
}

/// The real GPU, where the tests with the label gpu ask for it.
TEST(GpuTraining, HasTheNumbersOfTheCpuForEveryPlacement) {
  const device::GpuSearch search = test::find_gpu_for_tests();
  if (!search.gpu) {
    GTEST_SKIP() << search.refusal;
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const test::TemporaryFolder folder;
    model::init_model(test::tiny_gpu_model(), DType::f32, 3, folder.path());
    const test::CurveSettings settings = test::gpu_curve(folder.path(), dtype);
    const test::Curve reference = train_curve(settings, options_of(kPlacements[1]));
    std::optional<test::Curve> first;
    for (const Placement& placement : kPlacements) {
      SCOPED_TRACE(placement.name);
      engine::EngineOptions options = options_of(placement);
      engine::use_gpu(options, *search.gpu, {});
      const test::Curve curve = train_curve(settings, options);
      expect_close(curve, reference, dtype);
      first = first ? first : curve;
      EXPECT_EQ(curve, *first);
    }
  }
}

}  // namespace
}  // namespace headrace
