#include <gtest/gtest.h>

#include "base/error.h"
#include "support.h"

namespace headrace::scheduler::test {
namespace {

void check_case(Case test_case, const Policy& policy, Random& random) {
  for (int round = 0; round < 3; ++round) {
    const CompileInput input = test_case.input();
    const Schedule schedule = policy.compile(input);
    ASSERT_EQ(violations(input, schedule), "") << policy.name() << "\n" << describe(test_case);
    ASSERT_LE(schedule.peak_device, test_case.budgets.device);
    ASSERT_LE(schedule.peak_host, test_case.budgets.host);
    for (int order = 0; order < 3; ++order) {
      ASSERT_EQ(replay_values(test_case, schedule, random), "") << policy.name() << "\n"
                                                                << describe(test_case);
    }
    ASSERT_GE(simulate(input, schedule).seconds,
              channel_bound(input, schedule).seconds * (1 - 1e-9));
    test_case.initial = schedule.final;
  }
}

TEST(RandomTraces, SchedulesAreSoundAndGiveTheSequentialValuesInEveryOrder) {
  const auto optimal = make_optimal_policy();
  const auto lru = make_lru_policy();
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed, 1);
    const Case test_case = random_case(random);
    SCOPED_TRACE(seed);
    check_case(test_case, *optimal, random);
    check_case(test_case, *lru, random);
    if (HasFatalFailure()) {
      return;
    }
  }
}

/// A plan compared as for a drive that is never late is the cheapest on it: also cheaper than what
/// is compared otherwise.
TEST(RandomTraces, PlansAreComparedByTheDriveThatTheRatesDescribe) {
  const auto policy = make_optimal_policy();
  int cheaper = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed, 7);
    Case test_case = random_case(random);
    test_case.budgets.device = test_case.budgets.device * 4;  // values stay to the end
    test_case.budgets.host = test_case.budgets.host * 4;
    CompileInput input = test_case.input();
    input.foresight = Foresight::expected_part;  // of which the next round is no part
    const auto cost = [&](Bytes side_by_side) {
      input.rates.nvme_side_by_side = side_by_side;
      const Schedule schedule = policy->compile(input);
      return simulate(input, schedule).seconds + drive_cost(input.rates, schedule);
    };
    const double in_turn = cost(Bytes(0));
    const double late = cost(kMiB * 16);
    ASSERT_LE(in_turn, late * (1 + 1e-9)) << seed;
    cheaper += in_turn < late * (1 - 1e-6) ? 1 : 0;
  }
  EXPECT_GT(cheaper, 10);
}

TEST(RandomTraces, MinimumBudgetsAreExact) {
  const auto policy = make_optimal_policy();
  int device_cases = 0;
  int host_cases = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed, 2);
    Case test_case = random_case(random);
    const bool has_device = test_case.budgets.device.count() > 0;
    test_case.set_budgets(has_device, 0, 0);
    SCOPED_TRACE(seed);
    EXPECT_NO_THROW(policy->compile(test_case.input()));
    const Budgets exact = test_case.budgets;
    if (exact.device.count() > 0) {
      test_case.budgets.device = exact.device - exact.alignment;
      test_case.budgets.host = exact.host + Bytes(1 << 20);
      EXPECT_THROW(policy->compile(test_case.input()), CapacityError);
      ++device_cases;
    }
    test_case.budgets = exact;
    if (exact.host.count() > 0) {
      test_case.budgets.host = exact.host - exact.alignment;
      EXPECT_THROW(policy->compile(test_case.input()), CapacityError);
      ++host_cases;
    }
  }
  EXPECT_GT(device_cases, 1000);
  EXPECT_GT(host_cases, 1000);
}

// Operations with many objects of very different sizes at exactly the minimum: whatever lies where,
// room must be made.
TEST(RandomTraces, FragmentationNeverPreventsAnOperationThatFits) {
  const auto optimal = make_optimal_policy();
  const auto lru = make_lru_policy();
  for (uint64_t seed = 0; seed < 120; ++seed) {
    Random random(seed, 3);
    Case test_case;
    test_case.budgets.alignment = Bytes(64);
    std::vector<ObjectId> objects;
    for (int o = 0; o < 24; ++o) {
      const int64_t units = 1 + static_cast<int64_t>(random.below(o % 4 == 0 ? 60 : 9));
      objects.push_back(test_case.add(fmt::format("o{}", o), 64 * units, Tier::nvme, Tier::nvme));
    }
    const Tier tier = seed % 2 == 0 ? Tier::device : Tier::host;
    for (int i = 0; i < 25; ++i) {
      std::vector<Use> uses;
      for (const ObjectId object : objects) {
        if (random.below(3) != 0) {
          continue;
        }
        uses.push_back({object, tier, random.below(2) == 0 ? Access::read : Access::update, false});
      }
      test_case.run(fmt::format("op{}", i), Lane::compute, 1e-6, uses);
    }
    test_case.set_budgets(tier == Tier::device, 64 * static_cast<int64_t>(random.below(4)), 0);
    SCOPED_TRACE(seed);
    check_case(test_case, *optimal, random);
    check_case(test_case, *lru, random);
    if (HasFatalFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace headrace::scheduler::test
