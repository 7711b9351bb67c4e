#include "scheduler/lower_bound.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/interval_relaxation.h"
#include "transformer.h"

namespace headrace::scheduler::test {
namespace {

/// All ways of letting go whole bytes.
int64_t try_all(const std::vector<StayInterval>& intervals, size_t next, std::vector<int64_t>& load,
                const std::vector<int64_t>& room) {
  if (next == intervals.size()) {
    for (size_t i = 0; i < room.size(); ++i) {
      if (load[i] > std::max<int64_t>(0, room[i])) {
        return int64_t{1} << 40;
      }
    }
    return 0;
  }
  const StayInterval& interval = intervals[next];
  int64_t best = int64_t{1} << 40;
  for (int64_t let_go = 0; let_go <= interval.bytes; ++let_go) {
    for (int64_t i = interval.first; i <= interval.last; ++i) {
      load[static_cast<size_t>(i)] += interval.bytes - let_go;
    }
    best = std::min(best, let_go * interval.cost + try_all(intervals, next + 1, load, room));
    for (int64_t i = interval.first; i <= interval.last; ++i) {
      load[static_cast<size_t>(i)] -= interval.bytes - let_go;
    }
  }
  return best;
}

TEST(IntervalRelaxation, EqualsTryingEverything) {
  int tight = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed, 31);
    const size_t positions = 1 + random.below(8);
    const bool equal_costs = random.below(2) == 0;
    std::vector<StayInterval> intervals;
    for (uint64_t n = random.below(7); n > 0; --n) {
      const auto a = static_cast<int64_t>(random.below(positions));
      const auto b = static_cast<int64_t>(random.below(positions));
      intervals.push_back({std::min(a, b), std::max(a, b),
                           1 + static_cast<int64_t>(random.below(3)),
                           equal_costs ? 1 : 1 + static_cast<int64_t>(random.below(3))});
    }
    std::vector<int64_t> room(positions);
    for (int64_t& bytes : room) {
      bytes = static_cast<int64_t>(random.below(8)) - 1;
    }
    std::vector<int64_t> load(positions);
    const int64_t expected = try_all(intervals, 0, load, room);
    const auto found = least_cost_let_go(intervals, room, 1'000'000);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->cost, expected) << seed;
    int64_t cost = 0;
    for (size_t i = 0; i < intervals.size(); ++i) {
      cost += found->bytes[i] * intervals[i].cost;
    }
    EXPECT_EQ(cost, expected) << seed;
    if (equal_costs) {
      EXPECT_EQ(fewest_bytes_let_go(intervals, room), expected) << seed;
    }
    tight += expected > 0 ? 1 : 0;
  }
  EXPECT_GT(tight, 500);
}

void expect_below(const Case& test_case, const Policy& policy) {
  const CompileInput input = test_case.input();
  const Schedule schedule = policy.compile(input);
  for (const Parking parking : {Parking::allowed, Parking::never}) {
    const LowerBound bound = lower_bound(input, parking);
    EXPECT_LE(bound.nvme_read, schedule.nvme_read);
    EXPECT_LE(bound.nvme_write, schedule.nvme_write);
    EXPECT_LE(bound.host_to_device, schedule.host_to_device);
    EXPECT_LE(bound.device_to_host, schedule.device_to_host);
    EXPECT_LE(bound.nvme, schedule.nvme_read + schedule.nvme_write);
    EXPECT_LE(bound.link, schedule.host_to_device + schedule.device_to_host);
    EXPECT_LE(bound.seconds, simulate(input, schedule).seconds * (1 + 1e-9));
  }
}

TEST(LowerBound, IsBelowEveryScheduleOfRandomTraces) {
  const auto optimal = make_optimal_policy();
  const auto lru = make_lru_policy();
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Random random(seed, 32);
    Case test_case = random_case(random);
    for (Operation& operation : test_case.trace.operations) {
      operation.in_order = random.below(2) == 0;
    }
    SCOPED_TRACE(seed);
    for (int round = 0; round < 2; ++round) {
      expect_below(test_case, *lru);
      expect_below(test_case, *optimal);
      test_case.initial = lru->compile(test_case.input()).final;
    }
    if (HasFailure()) {
      FAIL() << describe(test_case);
    }
  }
}

TEST(LowerBound, IsBelowEveryScheduleOfTransformers) {
  for (const int64_t extra_mib : {0, 16, 64, 256}) {
    TransformerShape shape;
    shape.micro_batches = 2;
    Case step = transformer(shape);
    step.set_budgets(true, extra_mib << 19, extra_mib << 20);
    for (int round = 0; round < 3; ++round) {
      expect_below(step, *make_lru_policy());
      expect_below(step, *make_optimal_policy());
      step.initial = make_optimal_policy()->compile(step.input()).final;
    }
  }
}

// One object up, changed, and down again: nothing can overlap, the bound is the time.
TEST(LowerBound, IsExactForAChain) {
  Case test_case;
  const ObjectId object = test_case.add("o", 1 << 20, Tier::nvme, Tier::nvme);
  test_case.run("update", Lane::compute, 3e-3, {updates(object)});
  test_case.set_budgets(true, 0, 0);
  const CompileInput input = test_case.input();
  const LowerBound bound = lower_bound(input);
  const Rates& rates = test_case.rates;
  const double size = 1 << 20;
  EXPECT_DOUBLE_EQ(bound.chain_seconds, size / rates.nvme_read + size / rates.host_to_device +
                                            3e-3 + size / rates.device_to_host +
                                            size / rates.nvme_write +
                                            2 * (rates.nvme_latency + rates.link_latency));
  EXPECT_NEAR(bound.seconds, simulate(input, make_lru_policy()->compile(input)).seconds, 1e-12);
  EXPECT_EQ(bound.nvme, Bytes(2 << 20));
  EXPECT_EQ(bound.link, Bytes(2 << 20));
}

// Six equal objects are scanned twice in room for four. By Belady's rule the second scan finds o0,
// o1, o2 and, in the slot that each scan ends with, o5; it reads o3 and o4 again.
TEST(LowerBound, CountsWhatACyclicScanMustReadAgain) {
  Case test_case;
  std::vector<ObjectId> objects;
  for (int o = 0; o < 6; ++o) {
    objects.push_back(test_case.add(fmt::format("o{}", o), 4096, Tier::nvme, Tier::nvme));
  }
  for (int scan = 0; scan < 2; ++scan) {
    for (const ObjectId object : objects) {
      test_case.run("scan", Lane::compute, 0, {reads(object, Tier::host)});
    }
  }
  test_case.budgets = {Bytes(0), Bytes(4 * 4096)};
  const LowerBound bound = lower_bound(test_case.input());
  EXPECT_EQ(bound.nvme_read, Bytes(4096 * (6 + 2)));
  EXPECT_EQ(bound.nvme_write, Bytes(0));
  EXPECT_EQ(bound.nvme, bound.nvme_read);
}

// The states that an update needs cannot all come before it starts, and are written after it.
TEST(LowerBound, SeesWhatABarrierForbids) {
  Case test_case;
  const ObjectId barrier = test_case.add("norm", 4096, Tier::host);
  std::vector<ObjectId> states;
  for (int o = 0; o < 8; ++o) {
    states.push_back(test_case.add(fmt::format("s{}", o), 1 << 20, Tier::nvme, Tier::nvme));
  }
  test_case.run("compute", Lane::compute, 1.0, {writes(barrier, Tier::host)});
  test_case.run("norm", Lane::cpu_optimizer, 0, {updates(barrier, Tier::host)});
  for (const ObjectId state : states) {
    test_case.run("update", Lane::cpu_optimizer, 0,
                  {updates(state, Tier::host), reads(barrier, Tier::host)});
  }
  test_case.budgets = {Bytes(0), Bytes((2 << 20) + 4096)};
  test_case.rates = {1e6, 1e9, 1e9, 1e9, 0};
  const double six = 6.0 * (1 << 20) / 1e6;
  EXPECT_GE(lower_bound(test_case.input()).seconds, 1.0 + six);
  test_case.rates = {1e9, 1e6, 1e9, 1e9, 0};
  EXPECT_GE(lower_bound(test_case.input()).seconds, 1.0 + 8.0 * (1 << 20) / 1e6);
}

}  // namespace
}  // namespace headrace::scheduler::test
