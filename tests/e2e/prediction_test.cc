// Steps on lanes of known rate: the time predicted from the schedule beside the time measured, the
// bytes, and how close to its bound a step runs. Everything is slower than the machine, so that the
// figures do not depend on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "bench/lane_steps.h"
#include "support/temporary_folder.h"

namespace headrace {
namespace {

constexpr double kTimeError = 0.03;
constexpr double kBoundShare = 0.95;
constexpr int kAttempts = 5;  ///< other programs may take the cores for a while

/// Runs until `good` says so.
template <class Good>
bench::LaneResult run_until(const bench::LaneSetting& setting, int steps, const Good& good) {
  bench::LaneResult result;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const test::TemporaryFolder folder;
    result = bench::run_lanes(setting, folder.path(), 3, steps);
    EXPECT_TRUE(result.bytes_agree);
    if (good(result)) {
      break;
    }
  }
  return result;
}

bool is_predicted(const bench::LaneResult& result) {
  return std::abs(result.ratio - 1) <= kTimeError;
}

void expect_predicted(const bench::LaneSetting& setting, int steps) {
  SCOPED_TRACE(setting.name);
  const bench::LaneResult result = run_until(setting, steps, is_predicted);
  EXPECT_NEAR(result.ratio, 1, kTimeError) << "predicted " << result.predicted << " s, measured "
                                           << result.measured << " s, spread " << result.spread;
}

TEST(Prediction, TimeAndBytesOnThrottledLanes) {
  const std::vector<bench::LaneSetting> matrix = bench::lane_matrix();
  for (const char* name : {"width 192, nvme, budgets 200 %, 1 micro-batches, optimal",
                           "width 192, nvme, budgets 110 %, 1 micro-batches, lru",
                           "width 192, shared nvme, budgets 200 %, 1 micro-batches, optimal",
                           "width 192, host, budgets 110 %, 3 micro-batches, optimal"}) {
    const auto setting =
        std::find_if(matrix.begin(), matrix.end(),
                     [&](const bench::LaneSetting& each) { return each.name == name; });
    ASSERT_NE(setting, matrix.end()) << name;
    expect_predicted(*setting, 3);
  }
}

TEST(Prediction, StepsReachTheirBounds) {
  using scheduler::Lane;
  const std::vector<bench::LaneSetting> settings = bench::bound_settings();
  const Lane expected[] = {Lane::nvme_read, Lane::nvme_read, Lane::host_to_device, Lane::compute};
  ASSERT_EQ(settings.size(), std::size(expected));
  for (size_t i = 0; i < settings.size(); ++i) {
    SCOPED_TRACE(settings[i].name);
    const bench::LaneResult result = run_until(settings[i], 2, [](const bench::LaneResult& found) {
      return found.bound_share >= kBoundShare && is_predicted(found);
    });
    EXPECT_EQ(result.bound_lane, expected[i]) << to_string(result.bound_lane);
    EXPECT_GE(result.bound_share, kBoundShare) << result.measured << " s";
    EXPECT_LE(result.bound_share, 1.005);
    EXPECT_NEAR(result.ratio, 1, kTimeError);
  }
}

TEST(PredictionSlow, TimeAndBytesOverTheWholeMatrix) {
  const std::vector<bench::LaneSetting> matrix = bench::lane_matrix();
  EXPECT_GE(matrix.size(), 24U);
  for (const bench::LaneSetting& setting : matrix) {
    expect_predicted(setting, 3);
  }
}

}  // namespace
}  // namespace headrace
