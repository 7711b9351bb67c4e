#include "engine/learned_costs.h"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

using scheduler::Lane;

/// Periods of a lane of 100 MB/s and 2 ms, with the given sizes.
std::vector<BusyPeriod> periods(const std::vector<int64_t>& sizes) {
  std::vector<BusyPeriod> result;
  for (const int64_t size : sizes) {
    result.push_back({size, 2e-3 + static_cast<double>(size) / 100e6});
  }
  return result;
}

RunReport report_of(double operation, const std::vector<BusyPeriod>& read) {
  RunReport report;
  report.operation_seconds = {operation, 2 * operation};
  report.busy_periods[static_cast<size_t>(Lane::nvme_read)] = read;
  return report;
}

TEST(FitLane, FindsRateAndLatency) {
  const auto found = fit_lane(periods({4096, 4096, 1 << 20, 3 << 20, 50 << 20}));
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->bytes_per_second, 100e6, 1);
  EXPECT_NEAR(found->latency, 2e-3, 1e-9);
}

TEST(FitLane, PeriodsAllAlikeAreAllRate) {
  const auto found = fit_lane(periods({1 << 20, 1 << 20, 1 << 20}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->latency, 0);
  EXPECT_NEAR(found->bytes_per_second, (1 << 20) / (2e-3 + (1 << 20) / 100e6), 1);
}

TEST(FitLane, TheSumOfTheSecondsComesOut) {
  std::vector<BusyPeriod> noisy = periods({4096, 1 << 16, 1 << 20, 8 << 20});
  noisy[1].seconds += 1e-3;
  noisy[3].seconds += 5e-3;
  const auto found = fit_lane(noisy);
  ASSERT_TRUE(found);
  double expected = 0;
  double actual = 0;
  for (const BusyPeriod& period : noisy) {
    expected += period.seconds;
    actual += found->latency + static_cast<double>(period.bytes) / found->bytes_per_second;
  }
  EXPECT_NEAR(actual, expected, 1e-9);
}

TEST(FitLane, TimeSharedWithTheOtherDirectionCountsByItsShare) {
  // 100 MB/s alone, three quarters of that while the drive writes, too.
  std::vector<BusyPeriod> shared = periods({4096, 4096, 1 << 20, 3 << 20, 50 << 20});
  for (size_t i = 0; i < shared.size(); i += 2) {
    const double moving = static_cast<double>(shared[i].bytes) / 100e6;
    shared[i].shared = 0.5 * moving / 0.75;
    shared[i].seconds += shared[i].shared - 0.5 * moving;
  }
  const auto found = fit_lane(shared, 0.75);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->bytes_per_second, 100e6, 1);
  EXPECT_NEAR(found->latency, 2e-3, 1e-9);
}

TEST(FitLane, NothingMovedIsNothingKnown) {
  EXPECT_FALSE(fit_lane({}));
}

TEST(LearnedCosts, TheFirstStepCountsUntilThereIsAnother) {
  scheduler::Trace trace;
  trace.operations.resize(2);
  LearnedCosts costs{scheduler::Rates{}};
  costs.note(report_of(9, {}), 0.5);
  costs.apply_to(trace);
  EXPECT_EQ(trace.operations[1].seconds, 18);
  EXPECT_EQ(costs.commit_seconds(), 0.5);
  costs.note(report_of(1, {}), 0.1);
  costs.apply_to(trace);
  EXPECT_EQ(trace.operations[0].seconds, 1);
  EXPECT_EQ(costs.commit_seconds(), 0.1);
  EXPECT_EQ(costs.steps(), 2);
}

TEST(LearnedCosts, WhatTheDriveDoesOfBothStaysTheSameShareOfItsRates) {
  scheduler::Rates rates{.nvme_read = 3e9, .nvme_write = 1e9};
  rates.nvme_both = 2e9;
  LearnedCosts costs(rates);
  costs.note(report_of(1, periods({4096, 1 << 20, 50 << 20})), 0);
  costs.apply_to(rates);
  EXPECT_NEAR(rates.nvme_read, 100e6, 1);
  EXPECT_EQ(rates.nvme_write, 1e9);
  EXPECT_NEAR(rates.nvme_both, (100e6 + 1e9) / 2, 1);
  scheduler::Rates apart;
  LearnedCosts of_apart(apart);
  of_apart.note(report_of(1, periods({4096, 1 << 20, 50 << 20})), 0);
  of_apart.apply_to(apart);
  EXPECT_EQ(apart.nvme_both, 0);
}

TEST(LearnedCosts, OneDisturbedStepDoesNotCount) {
  scheduler::Trace trace;
  trace.operations.resize(2);
  scheduler::Rates rates;
  LearnedCosts costs{scheduler::Rates{}};
  const auto usual = periods({4096, 1 << 20, 50 << 20});
  auto slow = usual;
  for (BusyPeriod& period : slow) {
    period.seconds *= 10;
  }
  for (const double seconds : {7.0, 1.0, 50.0, 3.0}) {
    costs.note(report_of(seconds, seconds == 50 ? slow : usual), seconds);
  }
  costs.apply_to(trace);
  costs.apply_to(rates);
  EXPECT_EQ(trace.operations[0].seconds, 2);  // of 1, 50 and 3
  EXPECT_EQ(trace.operations[1].seconds, 4);
  EXPECT_EQ(costs.commit_seconds(), 3);  // the median
  EXPECT_NEAR(rates.nvme_read, 100e6, 1);
  EXPECT_NEAR(rates.nvme_latency, 2e-3, 1e-9);
}

TEST(LearnedCosts, OldStepsFadeAndIdleLanesKeepTheirRate) {
  scheduler::Trace trace;
  trace.operations.resize(2);
  scheduler::Rates rates;
  const scheduler::Rates before = rates;
  LearnedCosts costs{scheduler::Rates{}};
  for (int step = 0; step < 20; ++step) {
    costs.note(report_of(step < 12 ? 5 : 1, periods({1 << 20})), 0);
  }
  costs.apply_to(trace);
  costs.apply_to(rates);
  EXPECT_EQ(trace.operations[0].seconds, 1);
  EXPECT_EQ(rates.nvme_write, before.nvme_write);
  EXPECT_EQ(rates.host_to_device, before.host_to_device);
  EXPECT_EQ(rates.link_latency, before.link_latency);
  EXPECT_LT(rates.nvme_read, before.nvme_read);
}

}  // namespace
}  // namespace headrace::engine
