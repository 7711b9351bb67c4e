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

}  // namespace
}  // namespace headrace::scheduler::test
