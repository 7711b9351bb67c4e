#include "scheduler/simulator.h"

#include <gtest/gtest.h>

#include "support.h"

namespace headrace::scheduler::test {
namespace {

/// Two reads of half a second each (and 0.5 of latency), then operations of two and three seconds.
struct Hand {
  Case step;
  Schedule schedule;
  Hand() {
    const ObjectId a = step.add("a", 1000, Tier::nvme, Tier::nvme);
    const ObjectId b = step.add("b", 1000, Tier::nvme, Tier::nvme);
    step.run("first", Lane::compute, 2, {reads(a, Tier::host)});
    step.run("second", Lane::compute, 3, {reads(b, Tier::host)});
    step.rates = {2000, 500, 1000, 1000, 0.5};
    const auto read = [](ObjectId object) {
      return Action{ActionKind::transfer, object, Tier::nvme, Tier::host, 0, 0, {}};
    };
    schedule.actions = {read(a),
                        read(b),
                        {ActionKind::operation, {}, Tier::nvme, Tier::host, 0, 0, {0}},
                        {ActionKind::drop, a, Tier::host, Tier::host, 0, 0, {2}},
                        {ActionKind::operation, {}, Tier::nvme, Tier::host, 0, 1, {1, 3}},
                        {ActionKind::transfer, b, Tier::host, Tier::nvme, 0, 0, {4}}};
  }
};

TEST(Simulator, LanesOverlapAndServeOneActionAtATime) {
  const Hand hand;
  const Timeline timeline = simulate(hand.step.input(), hand.schedule);
  ASSERT_EQ(timeline.spans.size(), 5U);  // the drop costs nothing
  const double expected[][2] = {{0, 1}, {0.5, 1.5}, {1, 3}, {3, 6}, {6, 8.5}};
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    EXPECT_DOUBLE_EQ(timeline.spans[i].begin, expected[i][0]) << i;
    EXPECT_DOUBLE_EQ(timeline.spans[i].end, expected[i][1]) << i;
  }
  EXPECT_DOUBLE_EQ(timeline.seconds, 8.5);
}

TEST(Simulator, ReadyActionsRunInListOrder) {
  Hand hand;
  std::swap(hand.schedule.actions[0].object, hand.schedule.actions[1].object);
  hand.schedule.actions[0].after = {};
  const ActionTimes times = simulate_actions(hand.step.input(), hand.schedule.actions);
  EXPECT_LT(times.begin[0], times.begin[1]);
}

TEST(Simulator, OrderByStartKeepsDependenciesAndTimes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed, 6);
    const Case test_case = random_case(random);
    const CompileInput input = test_case.input();
    const Schedule schedule = make_optimal_policy()->compile(input);
    const auto again = order_by_start(input, schedule.actions);
    const ActionTimes times = simulate_actions(input, schedule.actions);
    for (size_t i = 1; i < schedule.actions.size(); ++i) {
      EXPECT_LE(times.begin[i - 1], times.begin[i] + 1e-12) << seed;
    }
    EXPECT_EQ(again.size(), schedule.actions.size());
  }
}

TEST(Bound, IsTheBusiestLane) {
  const Hand hand;
  const StepBound bound = channel_bound(hand.step.input(), hand.schedule);
  EXPECT_DOUBLE_EQ(bound.lane_seconds[static_cast<size_t>(Lane::nvme_read)], 1);
  EXPECT_DOUBLE_EQ(bound.lane_seconds[static_cast<size_t>(Lane::nvme_write)], 2);
  EXPECT_DOUBLE_EQ(bound.seconds, 5);
  EXPECT_EQ(bound.lane, Lane::compute);
}

/// Reads of 1000 and 3000 bytes at 1000 a second, a write of 2000 bytes at 500 a second.
struct SharedDrive {
  Case step;
  Schedule schedule;
  explicit SharedDrive(double both) {
    const ObjectId a = step.add("a", 1000, Tier::nvme, Tier::nvme);
    const ObjectId b = step.add("b", 3000, Tier::nvme, Tier::nvme);
    const ObjectId c = step.add("c", 2000, Tier::nvme, Tier::nvme);
    step.rates = {.nvme_read = 1000, .nvme_write = 500, .nvme_latency = 0.25, .nvme_both = both};
    const auto move = [](ObjectId object, Tier from, Tier to, std::vector<uint32_t> after) {
      return Action{ActionKind::transfer, object, from, to, 0, 0, std::move(after)};
    };
    schedule.actions = {move(a, Tier::nvme, Tier::host, {}), move(b, Tier::nvme, Tier::host, {}),
                        move(c, Tier::host, Tier::nvme, {0})};
  }
  void expect(const std::vector<std::pair<double, double>>& spans) const {
    const ActionTimes times = simulate_actions(step.input(), schedule.actions);
    for (size_t i = 0; i < spans.size(); ++i) {
      EXPECT_DOUBLE_EQ(times.begin[i], spans[i].first) << i;
      EXPECT_DOUBLE_EQ(times.end[i], spans[i].second) << i;
    }
  }
};

TEST(Simulator, DirectionsOfADriveSlowEachOtherWhileBothGoOn) {
  // 1000 and 500 a second alone, together 900: three fifths each. b runs alone from 1 to 1.25,
  // when c begins with 2750 bytes of b left; these take until 1.25 + 2750 / 600, when 625 bytes
  // of c are left for its whole rate.
  const double b_free = 1.25 + 2750 / 600.0;
  SharedDrive(900).expect({{0, 1.25}, {1, b_free + 0.25}, {1.25, b_free + 625 / 500.0 + 0.25}});
}

TEST(Simulator, DirectionsWithoutASharedLimitGoTheirOwnWay) {
  const std::vector<std::pair<double, double>> spans = {{0, 1.25}, {1, 4.25}, {1.25, 5.5}};
  SharedDrive(0).expect(spans);
  SharedDrive(1500).expect(spans);
  SharedDrive(4000).expect(spans);
}

TEST(Bound, OfASharedDriveIsBothDirectionsAtOnceAsLongAsBothHaveWork) {
  // Alone 4 s each: of 5/3 of that both have work, or one after the other: 8.
  EXPECT_DOUBLE_EQ(channel_bound(SharedDrive(900).step.input(), SharedDrive(900).schedule).seconds,
                   4 / 0.6);
  EXPECT_DOUBLE_EQ(channel_bound(SharedDrive(300).step.input(), SharedDrive(300).schedule).seconds,
                   8);
  EXPECT_DOUBLE_EQ(channel_bound(SharedDrive(0).step.input(), SharedDrive(0).schedule).seconds, 4);
}

}  // namespace
}  // namespace headrace::scheduler::test
