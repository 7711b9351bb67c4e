// Training with linear layers that compute their outputs in fp8: on the CPU and on the CUDA device,
// here the fake one, the same bits for every placement, and what the roundings cost in loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "e2e/cuda_training.h"
#include "e2e/small_model.h"
#include "support/real_gpu.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;

/// Of sizes that fp8 takes.
model::ModelConfig fp8_model(int64_t intermediate = 208) {
  model::ModelConfig config = test::small_model();
  config.intermediate_size = intermediate;
  return config;
}

test::CurveSettings settings_of(const std::string& folder, DType dtype, size_t steps) {
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = {4, 32};
  settings.loss_scale = dtype == DType::f16 ? 1024 : 1;
  const auto batches = test::random_steps(7, 16, 1, settings.shape, 301);
  for (size_t i = 0; i < steps; ++i) {
    settings.steps.push_back(batches[i % batches.size()]);
    settings.learning_rates.push_back(2e-3 * std::min(1.0, static_cast<double>(i + 1) / 20));
  }
  return settings;
}

engine::EngineOptions options_of(bool fp8, std::optional<Tier> state) {
  engine::EngineOptions options;
  options.fp8_forward = fp8;
  options.memory.host_memory = kMiB * 64;
  options.memory.device_memory = kMiB * 32;
  options.memory.offload_param = options.memory.offload_optimizer = state;
  options.memory.host_activations = state.has_value();
  options.vocab_tile = 64;
  options.pin_memory = false;
  return options;
}

/// Another order of sums; a value at the border between two codes can end at the other one.
void expect_close(const test::Curve& curve, const test::Curve& expected) {
  ASSERT_EQ(curve.losses.size(), expected.losses.size());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(curve.losses[step], expected.losses[step], 2e-2) << step;
  }
}

class Fp8Training : public testing::TestWithParam<DType> {
 protected:
  Fp8Training() { model::init_model(fp8_model(), DType::f32, 3, folder_.path()); }

  test::TemporaryFolder folder_;
};

TEST_P(Fp8Training, HasTheSameBitsForEveryPlacementAndTheNumbersOfTheCpu) {
  struct Place {
    std::optional<Tier> state;
    model::Recompute recompute;
  };
  const Place places[] = {{{}, model::Recompute::block},
                          {Tier::host, model::Recompute::mlp},
                          {Tier::nvme, model::Recompute::none}};
  const test::CurveSettings settings = settings_of(folder_.path(), GetParam(), 3);
  std::optional<test::Curve> on_cpu;
  for (const bool is_cuda : {false, true}) {
    const auto fake = std::make_shared<FakeCuda>();
    std::optional<test::Curve> first;
    for (const Place& place : places) {
      engine::EngineOptions options = options_of(true, place.state);
      options.memory.recompute = place.recompute;
      const test::Curve curve =
          train_curve(settings, is_cuda ? test::on_gpu(options, fake) : options);
      first = first ? first : curve;
      test::expect_same_bits(curve, *first);
    }
    on_cpu = on_cpu ? on_cpu : first;
    expect_close(*first, *on_cpu);
  }
}

/// What is rounded has its place in the plan: no more is there than it asks for. Of this model
/// blocks take most of the workspace.
TEST_P(Fp8Training, RunsInTheBudgetThatThePlanAsksFor) {
  const test::TemporaryFolder wide;
  model::init_model(fp8_model(1024), DType::f32, 3, wide.path());
  const test::CurveSettings settings = settings_of(wide.path(), GetParam(), 2);
  engine::EngineOptions options = options_of(true, Tier::host);
  EXPECT_GT(test::plan_of(settings, options).workspace,
            test::plan_of(settings, options_of(false, Tier::host)).workspace);
  const test::Curve ample = train_curve(settings, options);
  options.memory.device_memory = test::least_budgets(settings, options).device;
  expect_close(train_curve(settings, options), ample);  // in tiles of blocks
}

/// A model that learns its sixteen batches by heart: the mean loss of each time through them.
TEST_P(Fp8Training, LearnsAs16BitsDo) {
  constexpr size_t kSteps = 96;
  constexpr size_t kRound = 16;
  const test::CurveSettings settings = settings_of(folder_.path(), GetParam(), kSteps);
  const test::Curve plain = train_curve(settings, options_of(false, std::nullopt));
  const test::Curve fp8 = train_curve(settings, options_of(true, std::nullopt));
  EXPECT_NE(fp8.losses, plain.losses);
  const auto mean_of_round = [&](const test::Curve& curve, size_t first) {
    const auto begin = curve.losses.begin() + static_cast<int64_t>(first);
    return std::accumulate(begin, begin + kRound, 0.0) / kRound;
  };
  EXPECT_GT(plain.losses.front(), 5.5);
  for (size_t first = 0; first < kSteps; first += kRound) {
    const double expected = mean_of_round(plain, first);
    EXPECT_NEAR(mean_of_round(fp8, first), expected, 0.02 * expected) << first;
  }
  EXPECT_LT(mean_of_round(plain, kSteps - kRound), 4);
}

/// The real GPU, where the tests with the label gpu ask for it.
TEST(GpuTraining, Fp8HasTheNumbersOfTheCpuForEveryPlacement) {
  const device::GpuSearch search = test::find_gpu_for_tests();
  if (!search.gpu || !search.gpu->has_fp8) {
    GTEST_SKIP() << (search.gpu ? "this GPU has no fp8" : search.refusal);
  }
  const test::TemporaryFolder folder;
  model::init_model(fp8_model(), DType::f32, 3, folder.path());
  const test::CurveSettings settings = settings_of(folder.path(), DType::bf16, 4);
  const test::Curve on_cpu = train_curve(settings, options_of(true, Tier::host));
  std::optional<test::Curve> first;
  for (const std::optional<Tier> state : {std::optional<Tier>(), {Tier::host}, {Tier::nvme}}) {
    engine::EngineOptions options = options_of(true, state);
    engine::use_gpu(options, *search.gpu, {});
    const test::Curve curve = train_curve(settings, options);
    first = first ? first : curve;
    test::expect_same_bits(curve, *first);
    expect_close(curve, on_cpu);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Fp8Training, testing::Values(DType::bf16, DType::f16),
                         [](const auto& made) { return std::string(to_string(made.param)); });

}  // namespace
}  // namespace headrace
