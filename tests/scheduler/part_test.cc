// Parts of steps whose operations are announced one by one: what is compiled may be left at any
// moment for something else, and no value is lost by that.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "ready_actions.h"
#include "scheduler/demand.h"
#include "scheduler/input_check.h"
#include "scheduler/next_use.h"
#include "scheduler/placement.h"
#include "support.h"

namespace headrace::scheduler {
namespace {

using test::Case;

/// The tiers as runs of schedules leave them, value by value.
class Tiers {
 public:
  explicit Tiers(const Case& test_case)
      : objects_(test_case.objects),
        copies_(objects_.size()),
        newest_(objects_.size()),
        lives_(objects_.size(), Life::unborn) {
    for (size_t o = 0; o < objects_.size(); ++o) {
      if (objects_[o].home) {
        lives_[o] = Life::alive;
        at(o, *objects_[o].home).version = 0;
      }
    }
    for (const Residency& home : test_case.initial) {
      at(index_of(home.object), home.tier).offset = home.offset;
    }
  }

  const std::vector<Life>& lives() const { return lives_; }

  /// Executes what may happen when `announced` operations of the trace come, in a random order, and
  /// then the run is stopped. Returns what is wrong.
  std::string run(const Trace& trace, const Schedule& schedule, size_t announced, bool to_the_end,
                  Random& random) {
    const auto& actions = schedule.actions;
    test::ReadyActions ready(actions);
    size_t done = 0;
    while (!ready.empty() && (to_the_end || done < announced || random.below(4) != 0)) {
      const uint32_t next = ready.take(random);
      if (actions[next].kind == ActionKind::operation) {
        if (actions[next].operation >= announced) {
          continue;  // it never comes
        }
        ++done;
      }
      if (std::string wrong = execute(trace, actions[next]); !wrong.empty()) {
        return wrong;
      }
      ready.end(next);
    }
    if (done != announced) {
      return "an announced operation could not run";
    }
    // Of operations that only read the last may end first.
    for (size_t i = 0; i < announced; ++i) {
      EXPECT_EQ(pass_operation(trace.operations[i], objects_, lives_), "");
    }
    return "";
  }

  /// What has a home has a value again, if it was discarded: whatever lies there.
  void begin_step() {
    for (size_t o = 0; o < objects_.size(); ++o) {
      if (objects_[o].home && lives_[o] == Life::dead) {
        lives_[o] = Life::alive;
        at(o, *objects_[o].home).version = newest_[o];
      }
    }
  }
  /// Objects without home have no value any more.
  void end_step() {
    for (size_t o = 0; o < objects_.size(); ++o) {
      lives_[o] = objects_[o].home ? lives_[o] : Life::dead;
    }
  }

  /// Drops what is of no use; what is left. Sets `wrong` when a value is nowhere.
  std::vector<Residency> collect(std::string& wrong) {
    std::vector<Residency> residency;
    for (uint32_t o = 0; o < objects_.size(); ++o) {
      bool is_somewhere = false;
      for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
        Copy& copy = at(o, tier);
        const bool is_current = copy.version == newest_[o];
        is_somewhere = is_somewhere || is_current;
        if (objects_[o].home == tier) {
          if (tier != Tier::nvme) {
            residency.push_back({ObjectId{o}, tier, copy.offset, false});
          }
        } else if (is_current && lives_[o] == Life::alive) {
          const bool dirty = !objects_[o].home || at(o, *objects_[o].home).version != newest_[o];
          residency.push_back({ObjectId{o}, tier, copy.offset, dirty});
        } else {
          copy = {};
        }
      }
      if (lives_[o] == Life::alive && !is_somewhere) {
        wrong = "the value of " + objects_[o].name + " is lost";
      }
    }
    return residency;
  }

  bool is_home(size_t object) {
    return at(object, *objects_[object].home).version == newest_[object];
  }

 private:
  static constexpr int64_t kNoValue = -1;
  struct Copy {
    int64_t version = kNoValue;
    int64_t offset = 0;
  };

  Copy& at(size_t object, Tier tier) { return copies_[object][static_cast<size_t>(tier)]; }

  std::string execute(const Trace& trace, const Action& action) {
    const uint32_t o = index_of(action.object);
    switch (action.kind) {
      case ActionKind::drop:
        at(o, action.from) = {};
        return "";
      case ActionKind::place:
        at(o, action.to) = {kNoValue, action.offset};
        return "";
      case ActionKind::transfer:
        if (at(o, action.from).version != newest_[o]) {
          return "a transfer finds no current value of " + objects_[o].name;
        }
        at(o, action.to) = {newest_[o], action.offset};
        return "";
      case ActionKind::operation:
        break;
    }
    for (const Use& use : trace.operations[action.operation].uses) {
      const uint32_t used = index_of(use.object);
      if (use.access != Access::write && at(used, use.tier).version != newest_[used]) {
        return "an operation finds no current value of " + objects_[used].name;
      }
      if (use.access != Access::read) {
        at(used, use.tier).version = ++newest_[used];
      }
    }
    return "";
  }

  const std::vector<ObjectFacts>& objects_;
  std::vector<std::array<Copy, kTierCount>> copies_;
  std::vector<int64_t> newest_;
  std::vector<Life> lives_;
};

/// What is expected from a position of the trace on: some operations as they will come, then some
/// that do not, or not there.
Trace expected_from(const Case& test_case, size_t position, size_t certain, Random& random,
                    std::vector<Life> lives) {
  Trace expected;
  const auto& operations = test_case.trace.operations;
  for (size_t i = position; i < operations.size(); ++i) {
    const bool is_certain = i < position + certain;
    const Operation& operation = is_certain || random.below(3) != 0
                                     ? operations[i]
                                     : operations[random.below(operations.size())];
    if ((is_certain || random.below(4) != 0) &&
        pass_operation(operation, test_case.objects, lives).empty()) {
      expected.operations.push_back(operation);
    }
  }
  return expected;
}

bool has_anchored_without_home(const Case& test_case) {
  return std::any_of(test_case.objects.begin(), test_case.objects.end(),
                     [](const auto& facts) { return !facts.home && anchor_of(facts).has_value(); });
}

struct Counts {
  int parts = 0;
  int stopped = 0;
  int too_large = 0;
};

class PartsOfSteps {
 public:
  PartsOfSteps(Case test_case, Random& random, Counts& counts)
      : case_(std::move(test_case)), random_(random), counts_(counts), tiers_(case_) {}

  /// The steps of the case, one after another, in parts.
  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      tiers_.begin_step();
      size_t position = 0;
      while (position < case_.trace.operations.size()) {
        ASSERT_NO_FATAL_FAILURE(run_part(position));
      }
      tiers_.end_step();
      ASSERT_NO_FATAL_FAILURE(collect());
      const Trace nothing;
      ASSERT_NO_FATAL_FAILURE(execute(nothing, Foresight::expected_rest, *make_lru_policy(), 0));
      ASSERT_NO_FATAL_FAILURE(check_homes());
    }
  }

 private:
  void run_part(size_t& position) {
    const size_t left = case_.trace.operations.size() - position;
    const size_t announced = 1 + random_.below(left);
    if (random_.below(2) == 0) {
      const Trace expected = expected_from(case_, position, announced, random_, tiers_.lives());
      const auto policy =
          random_.below(2) == 0 ? make_optimal_policy(PolicyEffort::quick) : make_lru_policy();
      const auto foresight =
          random_.below(2) == 0 ? Foresight::expected_rest : Foresight::expected_part;
      try {
        ASSERT_NO_FATAL_FAILURE(execute(expected, foresight, *policy, announced));
        position += announced;
        return;
      } catch (const CapacityError&) {
        // An expected operation that never was in the trace may need more than the budgets.
        ++counts_.too_large;
      }
    }
    Trace one;
    one.operations.push_back(case_.trace.operations[position++]);
    ASSERT_NO_FATAL_FAILURE(execute(one, Foresight::expected_part, OnDemand(next_uses()), 1));
  }

  class OnDemand final : public Policy {
   public:
    explicit OnDemand(std::vector<uint32_t> next) : next_(std::move(next)) {}
    std::string_view name() const override { return "on demand"; }
    Schedule compile(const CompileInput& input) const override {
      return compile_on_demand(input, next_);
    }

   private:
    std::vector<uint32_t> next_;
  };

  std::vector<uint32_t> next_uses() {
    std::vector<uint32_t> next;
    for (size_t o = 0; o < case_.objects.size(); ++o) {
      next.push_back(random_.below(2) == 0 ? NextUse::kNever
                                           : static_cast<uint32_t>(random_.below(10)));
    }
    return next;
  }

  void execute(const Trace& trace, Foresight foresight, const Policy& policy, size_t announced) {
    CompileInput input = case_.input();
    input.trace = &trace;
    input.foresight = foresight;
    const Schedule schedule = policy.compile(input);
    ASSERT_EQ(test::violations(input, schedule), "") << policy.name();
    ASSERT_EQ(tiers_.run(trace, schedule, announced, trace.operations.empty(), random_), "")
        << policy.name();
    ++counts_.parts;
    counts_.stopped += announced < trace.operations.size() ? 1 : 0;
    collect();
  }

  void collect() {
    std::string wrong;
    case_.initial = tiers_.collect(wrong);
    ASSERT_EQ(wrong, "");
  }

  void check_homes() {
    for (size_t o = 0; o < case_.objects.size(); ++o) {
      if (case_.objects[o].home && tiers_.lives()[o] == Life::alive) {
        ASSERT_TRUE(tiers_.is_home(o)) << case_.objects[o].name;
      }
    }
  }

  Case case_;
  Random& random_;
  Counts& counts_;
  Tiers tiers_;
};

TEST(PartsOfSteps, NoValueIsLostWhereverTheyAreStopped) {
  Counts counts;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed, 77);
    Case test_case = test::random_case(random);
    // Slots of objects without home that are pinned to a tier are laid out as they come, without
    // knowing how long they stay: that may take more than the smallest budgets.
    if (has_anchored_without_home(test_case)) {
      int64_t all = 0;
      for (const ObjectFacts& facts : test_case.objects) {
        all += slot_bytes(facts, test_case.budgets.alignment);
      }
      test_case.budgets.host += Bytes(all);
      test_case.budgets.device += Bytes(test_case.budgets.device.count() > 0 ? all : 0);
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + test::describe(test_case));
    ASSERT_NO_FATAL_FAILURE(PartsOfSteps(std::move(test_case), random, counts).run(2));
  }
  EXPECT_GT(counts.stopped, 1000);
  EXPECT_LT(counts.too_large, counts.parts / 10);
}

Case case_of_one(Tier floor) {
  Case test_case;
  test_case.budgets.alignment = Bytes(64);
  test_case.add("weights", 64, Tier::nvme, Tier::nvme);
  test_case.add("gradient", 64, floor);
  test_case.run("forward", Lane::compute, 1, {test::reads(ObjectId{0}), test::writes(ObjectId{1})});
  test_case.rates = {1e7, 1e7, 5e7, 5e7, 1e-6};
  test_case.budgets.device = Bytes(640);
  test_case.budgets.host = Bytes(640);
  return test_case;
}

TEST(PartsOfSteps, ChangedValuesStayWhereTheyAreUntilTheEnd) {
  Case test_case = case_of_one(Tier::nvme);
  test_case.trace.operations[0].uses[0].access = Access::update;
  CompileInput input = test_case.input();
  input.foresight = Foresight::expected_part;
  const Schedule part = compile_on_demand(input, {NextUse::kNever, NextUse::kNever});
  EXPECT_EQ(test::violations(input, part), "");
  EXPECT_EQ(part.nvme_write, Bytes(0));
  EXPECT_EQ(part.device_to_host, Bytes(0));
  ASSERT_EQ(part.final.size(), 2U);
  EXPECT_TRUE(part.final[0].dirty);
  EXPECT_TRUE(part.final[1].dirty);
  input.foresight = Foresight::expected_rest;
  const Schedule rest = make_optimal_policy()->compile(input);
  EXPECT_EQ(test::violations(input, rest), "");
  EXPECT_EQ(rest.nvme_write, Bytes(64));
}

TEST(PartsOfSteps, ObjectsWithoutHomeStayOnlyWhereMoreMayCome) {
  const Case test_case = case_of_one(Tier::host);
  CompileInput input = test_case.input();
  input.initial = {{ObjectId{1}, Tier::host, 0, true}};
  EXPECT_THROW(make_lru_policy()->compile(input), InputError);
  input.foresight = Foresight::expected_rest;
  EXPECT_EQ(test::violations(input, make_lru_policy()->compile(input)), "");
}

/// Also of an object that the part itself does not use.
TEST(PartsOfSteps, AChangedCopyOnTheDeviceNeedsAWayDown) {
  Case test_case;
  test_case.budgets.alignment = Bytes(64);
  test_case.add("large", 256, Tier::nvme, Tier::nvme);
  test_case.add("small", 64, Tier::nvme, Tier::nvme);
  test_case.run("op", Lane::compute, 1, {test::reads(ObjectId{1})});
  test_case.budgets.device = Bytes(256);
  test_case.initial = {{ObjectId{0}, Tier::device, 0, true}};
  CompileInput input = test_case.input();
  input.foresight = Foresight::expected_part;
  const std::vector<uint32_t> unknown(2, NextUse::kNever);
  input.budgets.host = Bytes(192);
  EXPECT_THROW(compile_on_demand(input, unknown), CapacityError);
  input.budgets.host = Bytes(256);
  EXPECT_EQ(test::violations(input, compile_on_demand(input, unknown)), "");
}

TEST(PartsOfSteps, WhatIsKnownToBeUsedSoonIsNoVictim) {
  Case test_case;
  test_case.budgets.alignment = Bytes(64);
  for (const char* name : {"a", "b", "c", "d"}) {
    test_case.add(name, 64, Tier::nvme, Tier::nvme);
  }
  test_case.run("op", Lane::compute, 1, {test::reads(ObjectId{3}, Tier::host)});
  test_case.budgets.host = Bytes(192);
  test_case.initial = {{ObjectId{0}, Tier::host, 0, false},
                       {ObjectId{1}, Tier::host, 64, false},
                       {ObjectId{2}, Tier::host, 128, false}};
  CompileInput input = test_case.input();
  input.foresight = Foresight::expected_part;
  const auto victim = [&](std::vector<uint32_t> next) {
    next.push_back(NextUse::kNever);
    const Schedule schedule = compile_on_demand(input, next);
    EXPECT_EQ(test::violations(input, schedule), "");
    std::vector<uint32_t> dropped;
    for (const Action& action : schedule.actions) {
      if (action.kind == ActionKind::drop) {
        dropped.push_back(index_of(action.object));
      }
    }
    EXPECT_EQ(dropped.size(), 1U);
    return dropped.front();
  };
  constexpr uint32_t kNever = NextUse::kNever;
  EXPECT_EQ(victim({kNever, kNever, kNever}), 0U);  // least recently used
  EXPECT_EQ(victim({3, kNever, kNever}), 1U);       // nothing is known of
  EXPECT_EQ(victim({1, 2, 3}), 2U);                 // used again latest
  EXPECT_EQ(victim({3, 1, 2}), 0U);
}

}  // namespace
}  // namespace headrace::scheduler
