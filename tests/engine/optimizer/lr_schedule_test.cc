#include "engine/optimizer/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"

namespace headrace::engine {
namespace {

using Kind = LrScheduleOptions::Kind;
using Warmup = LrScheduleOptions::Warmup;

void expect_rates(const LrScheduleOptions& options, const std::vector<double>& expected) {
  const LrSchedule schedule(options);
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(schedule.lr_at(static_cast<int64_t>(step)), expected[step], 1e-15)
        << "step " << step;
  }
}

TEST(LrSchedule, Constant) {
  LrScheduleOptions options;
  options.base_lr = 0.25;
  options.warmup_num_steps = 0;  // not used, not checked
  expect_rates(options, {0.25, 0.25, 0.25});
  EXPECT_EQ(LrSchedule(options).lr_at(1'000'000'000'000), 0.25);
}

// Tables by hand: row s is the rate of DeepSpeed's counter s - 1, with row 0 "before the start".

TEST(LrSchedule, WarmupLinear) {
  LrScheduleOptions options;
  options.kind = Kind::warmup;
  options.warmup = Warmup::linear;
  options.warmup_min_lr = 0.1;
  options.warmup_max_lr = 0.5;
  options.warmup_num_steps = 4;
  expect_rates(options, {0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5});
}

TEST(LrSchedule, WarmupLogarithmic) {
  LrScheduleOptions options;
  options.kind = Kind::warmup;
  options.warmup_max_lr = 1.0;
  options.warmup_num_steps = 8;
  // log2(iteration + 1) / 3
  expect_rates(options, {0, 0, 1.0 / 3, std::log2(3.0) / 3, 2.0 / 3, std::log2(5.0) / 3,
                         std::log2(6.0) / 3, std::log2(7.0) / 3, 1, 1, 1});
}

TEST(LrSchedule, OneWarmupStepCountsAsTwo) {
  LrScheduleOptions options;
  options.kind = Kind::warmup;
  options.warmup = Warmup::linear;
  options.warmup_max_lr = 1.0;
  options.warmup_num_steps = 1;
  expect_rates(options, {0, 0, 0.5, 1, 1});
}

TEST(LrSchedule, WarmupDecay) {
  LrScheduleOptions options;
  options.kind = Kind::warmup_decay;
  options.warmup = Warmup::linear;
  options.warmup_max_lr = 1.0;
  options.warmup_num_steps = 2;
  options.total_num_steps = 6;
  // Iterations 0, 1 warm up; (6 - iteration) / 4 after that, never below 0.
  expect_rates(options, {0, 0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0, 0});
  options.warmup_min_lr = 0.2;  // the decay ends at the minimum
  expect_rates(options, {0.2, 0.2, 0.6, 1, 0.8, 0.6, 0.4, 0.2, 0.2});
}

TEST(LrSchedule, WarmupDecayShorterThanItsWarmup) {
  LrScheduleOptions options;
  options.kind = Kind::warmup_decay;
  options.warmup = Warmup::linear;
  options.warmup_max_lr = 1.0;
  options.warmup_num_steps = 4;
  options.total_num_steps = 2;
  expect_rates(options, {0, 0, 0.25, 0.5, 0.75, 0, 0});
}

TEST(LrSchedule, WarmupCosine) {
  LrScheduleOptions options;
  options.kind = Kind::warmup_cosine;
  options.warmup = Warmup::linear;
  options.base_lr = 2.0;
  options.warmup_num_steps = 2;
  options.total_num_steps = 6;
  options.warmup_min_ratio = 0.5;
  options.cos_min_ratio = 0.2;
  // Warm-up: ratios 0.5, 0.75; then 0.2 + 0.8 (1 + cos(pi k / 4)) / 2 for k = 1, 2, 3, 4, 4, ...
  const double half = std::sqrt(0.5);
  expect_rates(options, {0.0, 1.0, 1.5, 2 * (0.2 + 0.4 * (1 + half)), 2 * 0.6,
                         2 * (0.2 + 0.4 * (1 - half)), 0.4, 0.4, 0.4, 0.4});
}

TEST(LrSchedule, WarmupCosineWithoutDecayWindowStaysAtTheMinimum) {
  LrScheduleOptions options;
  options.kind = Kind::warmup_cosine;
  options.warmup = Warmup::linear;
  options.base_lr = 1.0;
  options.warmup_num_steps = 2;
  options.total_num_steps = 2;
  options.cos_min_ratio = 0.125;
  expect_rates(options, {0, 0, 0.5, 0.125, 0.125, 0.125});
}

TEST(LrSchedule, RefusesImpossibleOptionsByKey) {
  LrScheduleOptions options;
  options.kind = Kind::warmup;
  options.warmup_num_steps = -1;
  try {
    const LrSchedule schedule(options);
    FAIL() << "accepted -1 warm-up steps";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("scheduler.params.warmup_num_steps"),
              std::string::npos);
  }
  options.warmup_num_steps = 10;
  options.kind = Kind::warmup_cosine;
  options.total_num_steps = 0;
  EXPECT_THROW(const LrSchedule schedule(options), InputError);
  EXPECT_THROW(LrSchedule(LrScheduleOptions{}).lr_at(-1), InternalError);
}

}  // namespace
}  // namespace headrace::engine
