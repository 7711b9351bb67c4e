// No step waits for its schedule but the first three, which measure what schedules are compiled
// from: what a step will leave in memory is known when it begins, and the next one is compiled
// meanwhile.
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/small_model.h"
#include "e2e/training_harness.h"

namespace headrace {
namespace {

TEST(ScheduleAhead, OnlyTheFirstStepsWait) {
  const test::TemporaryFolder folder;
  model::init_model(test::small_model(5), DType::bf16, 4, folder.path());
  test::CurveSettings settings;
  settings.model_folder = folder.path();
  settings.dtype = DType::bf16;
  settings.shape = {2, 32};
  settings.gradient_clipping = 0;
  settings.steps = test::random_steps(5, 12, 1, settings.shape, 301);
  settings.learning_rates.assign(settings.steps.size(), 1e-3);
  std::vector<bool> waited;
  settings.observe = [&](const engine::EngineReport& report) {
    waited.push_back(report.waited_for_schedule);
  };
  engine::EngineOptions options;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  options.memory.device_memory = kMiB * 3;
  options.memory.host_memory = kMiB * 6;
  options.memory.sub_group_size = Elements(16384);
  train_curve(settings, options);
  std::vector<bool> expected(settings.steps.size(), false);
  std::fill_n(expected.begin(), 3, true);
  EXPECT_EQ(waited, expected);
}

}  // namespace
}  // namespace headrace
