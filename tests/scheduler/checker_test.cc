#include <gtest/gtest.h>

#include "transformer.h"

namespace headrace::scheduler::test {
namespace {

/// A sound schedule with every kind of action, to be damaged.
struct Sound {
  Case step;
  Schedule schedule;
};

Sound sound_schedule() {
  Sound sound{transformer({3, 2, 4096, 8192, 4096, 1e-5, 1e-5}, Tier::host), {}};
  sound.step.set_budgets(true, 0, 4096);
  sound.step.place_homes();
  sound.schedule = make_optimal_policy()->compile(sound.step.input());
  EXPECT_EQ(violations(sound.step.input(), sound.schedule), "");
  return sound;
}

bool refused(const Sound& sound) {
  return !check_schedule(sound.step.input(), sound.schedule).empty();
}

// Without one dependency an action may run too early, unless another path says the same.
TEST(Checker, FindsMissingDependencies) {
  const Sound sound = sound_schedule();
  int found = 0;
  int tried = 0;
  for (size_t i = 0; i < sound.schedule.actions.size(); ++i) {
    for (size_t d = 0; d < sound.schedule.actions[i].after.size(); ++d) {
      Sound damaged = sound;
      auto& after = damaged.schedule.actions[i].after;
      after.erase(after.begin() + static_cast<ptrdiff_t>(d));
      ++tried;
      const bool is_refused = refused(damaged);
      found += is_refused ? 1 : 0;
      if (is_refused) {
        continue;
      }
      // Accepted: then every order must still give the right values.
      for (uint64_t seed = 0; seed < 3; ++seed) {
        Random random(seed, 5);
        damaged.step.budgets.alignment = Bytes(4096);
        EXPECT_EQ(replay_values(damaged.step, damaged.schedule, random), "");
      }
    }
  }
  EXPECT_GT(found, tried / 3);
}

TEST(Checker, FindsWrongOffsets) {
  const Sound sound = sound_schedule();
  for (size_t i = 0; i < sound.schedule.actions.size(); ++i) {
    const Action& action = sound.schedule.actions[i];
    const bool has_slot = action.kind == ActionKind::place ||
                          (action.kind == ActionKind::transfer && action.to != Tier::nvme);
    if (!has_slot) {
      continue;
    }
    Sound damaged = sound;
    damaged.schedule.actions[i].offset += 64;
    EXPECT_TRUE(refused(damaged)) << i;
    damaged.schedule.actions[i].offset = sound.step.budgets.host.count() + (1 << 20);
    EXPECT_TRUE(refused(damaged)) << i;
  }
}

TEST(Checker, FindsWrongTiersAndObjects) {
  const Sound sound = sound_schedule();
  for (size_t i = 0; i < sound.schedule.actions.size(); ++i) {
    const Action& action = sound.schedule.actions[i];
    if (action.kind == ActionKind::operation) {
      continue;
    }
    Sound damaged = sound;
    damaged.schedule.actions[i].object = ObjectId{1000};
    EXPECT_TRUE(refused(damaged)) << i;
    if (action.kind != ActionKind::transfer) {
      continue;
    }
    damaged = sound;
    std::swap(damaged.schedule.actions[i].from, damaged.schedule.actions[i].to);
    EXPECT_TRUE(refused(damaged)) << i;
  }
}

// Actions without followers are left out one at a time by turning them into something harmless.
TEST(Checker, FindsMissingOperationsAndRepeatedOnes) {
  const Sound sound = sound_schedule();
  for (size_t i = 0; i < sound.schedule.actions.size(); ++i) {
    if (sound.schedule.actions[i].kind != ActionKind::operation) {
      continue;
    }
    Sound damaged = sound;
    damaged.schedule.actions[i].operation = (damaged.schedule.actions[i].operation + 1) % 5;
    EXPECT_TRUE(refused(damaged)) << i;
  }
}

TEST(Checker, FindsLostValuesLateWriteBacksAndWrongTotals) {
  Case step;
  const ObjectId object = step.add("S", 4096, Tier::nvme, Tier::nvme);
  step.run("update", Lane::cpu_optimizer, 1e-3, {updates(object, Tier::host)});
  step.set_budgets(false, 0, 0);
  const Schedule sound = make_optimal_policy()->compile(step.input());
  ASSERT_EQ(sound.actions.size(), 3U);  // read, update, write

  Schedule unwritten = sound;
  unwritten.actions.pop_back();
  unwritten.nvme_write = Bytes(0);
  EXPECT_NE(violations(step.input(), unwritten).find("not current"), std::string::npos);

  Schedule lost = unwritten;
  lost.actions.push_back({ActionKind::drop, object, Tier::host, Tier::host, 0, 0, {0, 1}});
  EXPECT_NE(violations(step.input(), lost).find("is lost"), std::string::npos);

  Schedule early = sound;
  early.actions.back().after = {0};
  EXPECT_NE(violations(step.input(), early).find("may run before"), std::string::npos);

  Schedule totals = sound;
  totals.nvme_read = Bytes(0);
  totals.peak_host += Bytes(1);
  EXPECT_EQ(check_schedule(step.input(), totals).size(), 2U);

  Schedule dirty = sound;
  dirty.final.front().dirty = true;
  EXPECT_TRUE(!check_schedule(step.input(), dirty).empty());
  dirty.final.clear();
  EXPECT_TRUE(!check_schedule(step.input(), dirty).empty());
}

TEST(Checker, FindsSlotsReusedTooEarly) {
  Case step;
  const ObjectId a = step.add("a", 4096, Tier::nvme, Tier::nvme);
  const ObjectId b = step.add("b", 4096, Tier::nvme, Tier::nvme);
  step.run("read a", Lane::compute, 1e-3, {reads(a, Tier::host)});
  step.run("read b", Lane::compute, 1e-3, {reads(b, Tier::host)});
  step.budgets.host = Bytes(4096);
  Schedule schedule = make_optimal_policy()->compile(step.input());
  ASSERT_EQ(violations(step.input(), schedule), "");
  for (Action& action : schedule.actions) {
    if (action.kind == ActionKind::transfer && action.object == b) {
      action.after.clear();
    }
  }
  EXPECT_NE(violations(step.input(), schedule).find("frees"), std::string::npos);
}

}  // namespace
}  // namespace headrace::scheduler::test
