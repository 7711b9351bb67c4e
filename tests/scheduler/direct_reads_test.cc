// Reads straight from nvme to the device: sound, never slower in the simulation, and where they are
// possible all bounds are still bounds.
#include "scheduler/direct_reads.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "scheduler/costs.h"
#include "scheduler/lower_bound.h"
#include "scheduler/simulator.h"
#include "transformer.h"

namespace headrace::scheduler::test {
namespace {

constexpr double kRounding = 1e-9;

size_t direct_reads(const Schedule& schedule) {
  return static_cast<size_t>(
      std::count_if(schedule.actions.begin(), schedule.actions.end(), [](const Action& action) {
        return action.kind == ActionKind::transfer && is_direct(action.from, action.to);
      }));
}

/// A step that reads two values on the device, one after the other, with room for one of them in
/// each arena.
struct TwoReads {
  Case step;
  ObjectId a, b;
  explicit TwoReads(double direct_share, int64_t device_slots = 2) {
    a = step.add("a", 4096, Tier::nvme, Tier::nvme);
    b = step.add("b", 4096, Tier::nvme, Tier::nvme);
    step.run("first", Lane::compute, 1, {reads(a)});
    step.run("second", Lane::compute, 1, {reads(b)});
    step.budgets.device = Bytes(4096 * device_slots);
    step.budgets.host = Bytes(4096);
    step.rates = {.nvme_read = 4096,
                  .nvme_write = 4096,
                  .host_to_device = 8192,
                  .device_to_host = 8192,
                  .nvme_latency = 0.25,
                  .link_latency = 0.125,
                  .direct_share = direct_share};
  }
  Schedule compile() const { return make_lru_policy()->compile(step.input()); }
  Schedule compile_direct() const { return add_direct_reads(step.input(), compile()); }
};

TEST(DirectReads, TakeThePlaceOfTheWayThroughTheHost) {
  const TwoReads two(1);
  const Schedule through_host = two.compile();
  const Schedule direct = two.compile_direct();
  EXPECT_EQ(violations(two.step.input(), direct), "");
  // b stays in the host, where nothing needs its room: it may serve the next round.
  EXPECT_EQ(direct_reads(direct), 1U);
  EXPECT_EQ(direct.direct, Bytes(4096));
  EXPECT_EQ(direct.nvme_read, through_host.nvme_read);
  EXPECT_EQ(direct.host_to_device, through_host.host_to_device);
  EXPECT_EQ(direct.actions.size(), through_host.actions.size() - 2);
  EXPECT_EQ(direct.final, through_host.final);
  // 1 s to read each and 0.25 of latency; b then takes half a second and 0.125 more. Through the
  // host a would be there half a second and 0.125 later, and b have its room only then.
  EXPECT_DOUBLE_EQ(simulate(two.step.input(), direct).seconds, 1 + 1 + 0.25 + 0.5 + 0.125 + 1);
  EXPECT_GT(simulate(two.step.input(), through_host).seconds, 3.9);
}

TEST(DirectReads, AreNotMadeWhereTheyAreSlower) {
  EXPECT_EQ(direct_reads(TwoReads(0.3).compile_direct()), 0U);
  EXPECT_EQ(direct_reads(TwoReads(1).compile_direct()), 1U);
}

TEST(DirectReads, NothingChangesWhereThereAreNone) {
  const TwoReads two(0);
  EXPECT_EQ(two.compile_direct(), two.compile());
}

TEST(DirectReads, AValueThatTheHostStillUsesPassesIt) {
  TwoReads two(1);
  two.step.run("third", Lane::cpu_optimizer, 1, {reads(two.a, Tier::host)});
  two.step.budgets.host = Bytes(8192);
  EXPECT_EQ(direct_reads(two.compile_direct()), 0U);
}

TEST(DirectReads, TheRoomOfTheDeviceIsTakenFromTheReadsBegin) {
  TwoReads two(1, 1);
  two.step.run("third", Lane::compute, 1, {reads(two.a)});
  const Schedule direct = add_direct_reads(two.step.input(), two.compile());
  ASSERT_EQ(violations(two.step.input(), direct), "");
  EXPECT_EQ(direct.peak_device, Bytes(4096));
  const ActionTimes times = simulate_actions(two.step.input(), direct.actions);
  double room_free = 0;
  for (size_t i = 0; i < direct.actions.size(); ++i) {
    const Action& action = direct.actions[i];
    if (action.kind == ActionKind::drop && action.from == Tier::device) {
      room_free = times.end[i];
    } else if (action.kind == ActionKind::transfer && action.to == Tier::device) {
      EXPECT_GE(times.begin[i], room_free);
    }
  }
}

TEST(DirectReads, OfRandomTracesAreSoundAndNoSlower) {
  const auto optimal = make_optimal_policy();
  const auto lru = make_lru_policy();
  size_t found = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed, 41);
    Case test_case = random_case(random);
    constexpr double kShares[] = {1, 0.7, 0.4};
    test_case.rates.direct_share = kShares[seed % 3];
    test_case.rates.nvme_both = seed % 2 == 0 ? 0 : 1.2e7;
    test_case.rates.host_to_device = seed % 5 == 0 ? 0.8e7 : 5e7;
    const Policy& policy = seed % 2 == 0 ? *optimal : *lru;
    for (int round = 0; round < 3; ++round) {
      const CompileInput input = test_case.input();
      const Schedule base = policy.compile(input);
      const Schedule direct = add_direct_reads(input, base);
      ASSERT_EQ(violations(input, direct), "") << describe(test_case);
      ASSERT_LE(direct.peak_device, base.peak_device);
      ASSERT_LE(direct.peak_host, base.peak_host);
      ASSERT_EQ(direct.final, base.final);
      ASSERT_EQ(replay_values(test_case, direct, random), "") << describe(test_case);
      const double seconds = simulate(input, direct).seconds;
      ASSERT_LE(seconds, simulate(input, base).seconds * (1 + kRounding));
      ASSERT_GE(seconds, channel_bound(input, direct).seconds * (1 - kRounding));
      const LowerBound bound = lower_bound(input);
      ASSERT_GE(seconds, bound.seconds * (1 - kRounding)) << describe(test_case);
      ASSERT_GE(direct.nvme_read, bound.nvme_read);
      ASSERT_GE(direct.host_to_device, bound.host_to_device);
      found += direct_reads(direct);
      test_case.initial = direct.final;
    }
  }
  EXPECT_GT(found, 500U);
}

TEST(DirectReads, OfATrainingStepTakeLoadOffTheLink) {
  Case step = transformer({});
  step.rates.direct_share = 1;
  step.set_budgets(true, 24 << 20, 8 << 20);
  step.place_homes();
  const CompileInput input = step.input();
  const auto policy = with_direct_reads(make_optimal_policy());
  const Schedule direct = policy->compile(input);
  EXPECT_EQ(violations(input, direct), "");
  EXPECT_GT(direct.direct, direct.nvme_read / 20);
  EXPECT_EQ(policy->name(), "optimal");
}

TEST(DirectReads, OfRestsOfStepsLoseNoValue) {
  const auto policy = with_direct_reads(make_lru_policy());
  size_t found = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed, 43);
    Case test_case = random_case(random);
    test_case.rates.direct_share = 1;
    CompileInput input = test_case.input();
    input.foresight = seed % 2 == 0 ? Foresight::expected_rest : Foresight::expected_part;
    Schedule schedule;
    try {
      schedule = policy->compile(input);
    } catch (const Error&) {
      continue;  // it needs more room than a whole step, which is known
    }
    ASSERT_EQ(violations(input, schedule), "") << describe(test_case);
    found += direct_reads(schedule);
  }
  EXPECT_GT(found, 20U);
}

// The checker, with a sound schedule that is damaged.
TEST(DirectReads, TheCheckerFindsWhatIsWrong) {
  const TwoReads two(1);
  const Schedule sound = two.compile_direct();
  Case without = two.step;
  without.rates.direct_share = 0;
  EXPECT_NE(violations(without.input(), sound).find("where there are none"), std::string::npos);

  const auto read =
      std::find_if(sound.actions.begin(), sound.actions.end(),
                   [](const Action& action) { return action.kind == ActionKind::transfer; });
  const auto index = static_cast<size_t>(read - sound.actions.begin());
  Schedule damaged = sound;
  damaged.direct = Bytes(0);
  EXPECT_NE(violations(two.step.input(), damaged).find("direct"), std::string::npos);
  damaged = sound;
  damaged.actions[index].offset = 8192;
  EXPECT_NE(violations(two.step.input(), damaged), "");
  damaged = sound;
  damaged.actions[index].from = Tier::host;
  EXPECT_NE(violations(two.step.input(), damaged), "");
}

// Without one of its dependencies a direct read may come too early, unless another path says the
// same: then every order must still give the right values.
TEST(DirectReads, MissingDependenciesAreFound) {
  Case step = transformer({4, 2, 4096, 8192, 4096, 1e-5, 1e-5});
  step.rates.direct_share = 1;
  step.set_budgets(true, 4096, 0);
  step.place_homes();
  const CompileInput input = step.input();
  const Schedule sound = add_direct_reads(input, make_lru_policy()->compile(input));
  ASSERT_EQ(violations(input, sound), "");
  int found = 0;
  for (size_t i = 0; i < sound.actions.size(); ++i) {
    if (sound.actions[i].kind != ActionKind::transfer ||
        !is_direct(sound.actions[i].from, sound.actions[i].to)) {
      continue;
    }
    for (size_t d = 0; d < sound.actions[i].after.size(); ++d) {
      Schedule damaged = sound;
      auto& after = damaged.actions[i].after;
      after.erase(after.begin() + static_cast<ptrdiff_t>(d));
      if (!violations(input, damaged).empty()) {
        ++found;
        continue;
      }
      for (uint64_t seed = 0; seed < 3; ++seed) {
        Random random(seed, 47);
        EXPECT_EQ(replay_values(step, damaged, random), "") << i;
      }
    }
  }
  EXPECT_GT(found, 3);
}

TEST(DirectReads, TheSlotOfTheDeviceMustBeFree) {
  TwoReads two(1, 1);
  const Schedule base = two.compile();
  Schedule direct = add_direct_reads(two.step.input(), base);
  ASSERT_EQ(violations(two.step.input(), direct), "");
  int tried = 0;
  for (size_t i = 0; i < direct.actions.size(); ++i) {
    if (direct.actions[i].kind == ActionKind::transfer && direct.actions[i].to == Tier::device &&
        !direct.actions[i].after.empty()) {
      Schedule damaged = direct;
      damaged.actions[i].after.clear();
      EXPECT_NE(violations(two.step.input(), damaged), "");
      ++tried;
    }
  }
  EXPECT_GT(tried, 0);
}

// 3000 bytes at 1000 a second, beside copies of 1000 bytes each over a link of 1500 a second.
TEST(DirectReads, ShareTheLinkWithCopies) {
  Case step;
  const ObjectId a = step.add("a", 3000, Tier::nvme, Tier::nvme);
  const ObjectId b = step.add("b", 1500, Tier::nvme, Tier::nvme);
  step.rates = {.nvme_read = 1000,
                .host_to_device = 1500,
                .nvme_latency = 0,
                .link_latency = 0,
                .direct_share = 1};
  const auto move = [](ObjectId object, Tier from) {
    return Action{ActionKind::transfer, object, from, Tier::device, 0, 0, {}};
  };
  const std::vector<Action> actions = {move(a, Tier::nvme), move(b, Tier::host)};
  const ActionTimes times = simulate_actions(step.input(), actions);
  // Both want more than the link has: 750 each, until the copy is done after 2 s; the other 1500
  // bytes of the read then come at 1000 a second.
  EXPECT_DOUBLE_EQ(times.end[1], 2);
  EXPECT_DOUBLE_EQ(times.end[0], 2 + 1500.0 / 1000);

  step.rates.direct_share = 0.5;  // 500 a second, which leaves the copy 1000
  const ActionTimes slower = simulate_actions(step.input(), actions);
  EXPECT_DOUBLE_EQ(slower.end[1], 1.5);
  EXPECT_DOUBLE_EQ(slower.end[0], 6);
}

TEST(DirectReads, AreNoFasterThanDriveOrLink) {
  Rates rates;
  rates.nvme_read = 6e9;
  rates.host_to_device = 25e9;
  rates.direct_share = 0.5;
  EXPECT_EQ(transfer_rate(rates, Tier::nvme, Tier::device), 3e9);
  rates.host_to_device = 2e9;
  EXPECT_EQ(transfer_rate(rates, Tier::nvme, Tier::device), 2e9);
  EXPECT_EQ(transfer_lane(Tier::nvme, Tier::device), Lane::nvme_read);
}

}  // namespace
}  // namespace headrace::scheduler::test
