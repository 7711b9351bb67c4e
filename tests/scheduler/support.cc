#include "support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ready_actions.h"

namespace headrace::scheduler::test {

ObjectId Case::add(std::string name, int64_t size, Tier floor, std::optional<Tier> home) {
  objects.push_back({std::move(name), Bytes(size), floor, home});
  return ObjectId{static_cast<uint32_t>(objects.size() - 1)};
}

Operation& Case::run(std::string name, Lane lane, double seconds, std::vector<Use> uses) {
  trace.operations.push_back({std::move(name), lane, std::move(uses), seconds});
  return trace.operations.back();
}

void Case::place_homes() {
  std::array<int64_t, 2> top{};
  initial.clear();
  for (uint32_t o = 0; o < objects.size(); ++o) {
    const auto& home = objects[o].home;
    if (!home || *home == Tier::nvme) {
      continue;
    }
    int64_t& next = top[static_cast<size_t>(*home)];
    initial.push_back({ObjectId{o}, *home, next, false});
    next += align_up(objects[o].size, budgets.alignment).count();
  }
}

void Case::set_budgets(bool has_device, int64_t extra_device, int64_t extra_host) {
  budgets.device = Bytes(0);
  if (has_device) {
    budgets.device = minimum_device_budget(trace, objects, budgets.alignment) + Bytes(extra_device);
  }
  budgets.host =
      minimum_host_budget(trace, objects, budgets.device, budgets.alignment) + Bytes(extra_host);
}

std::string describe(const Case& test_case) {
  std::string text =
      fmt::format("device {} host {}\n", test_case.budgets.device, test_case.budgets.host);
  for (const ObjectFacts& o : test_case.objects) {
    text += fmt::format("  {} size {} floor {} home {}\n", o.name, o.size, to_string(o.floor),
                        o.home ? to_string(*o.home) : "-");
  }
  for (const Operation& operation : test_case.trace.operations) {
    text += fmt::format("  {}:", operation.name);
    for (const Use& use : operation.uses) {
      text += fmt::format(" {}.{}.{}{}", test_case.objects[index_of(use.object)].name,
                          to_string(use.tier),
                          use.access == Access::read    ? "r"
                          : use.access == Access::write ? "w"
                                                        : "u",
                          use.discard_after ? "!" : "");
    }
    text += "\n";
  }
  return text;
}

CompileInput Case::input() const {
  return {&trace, &objects, budgets, rates, initial};
}

namespace {

constexpr int64_t kUnit = 64;

bool chance(Random& random, int percent) {
  return random.below(100) < static_cast<uint64_t>(percent);
}

Tier random_tier(Random& random, Tier first, Tier last) {
  const auto count = static_cast<uint64_t>(last) - static_cast<uint64_t>(first) + 1;
  return static_cast<Tier>(static_cast<uint64_t>(first) + random.below(count));
}

void add_random_objects(Case& test_case, Random& random, bool has_device) {
  const uint64_t count = 1 + random.below(9);
  const int64_t largest = chance(random, 30) ? 40 : 6;
  for (uint64_t o = 0; o < count; ++o) {
    const Tier highest = has_device ? Tier::device : Tier::host;
    const Tier floor = chance(random, 60) ? Tier::nvme : random_tier(random, highest, Tier::nvme);
    std::optional<Tier> home;
    if (chance(random, 60)) {
      home = chance(random, 60) ? floor : random_tier(random, highest, floor);
    }
    const int64_t size =
        1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(largest * kUnit)));
    test_case.add(fmt::format("o{}", o), size, floor, home);
  }
}

}  // namespace

Case random_case(Random& random) {
  Case test_case;
  test_case.trace.name = "random";
  test_case.budgets.alignment = Bytes(kUnit);
  const bool has_device = chance(random, 70);
  add_random_objects(test_case, random, has_device);
  std::vector<bool> alive;
  for (const ObjectFacts& facts : test_case.objects) {
    alive.push_back(facts.home.has_value());
  }
  const uint64_t operations = 1 + random.below(14);
  const int density = 15 + static_cast<int>(random.below(50));
  for (uint64_t i = 0; i < operations; ++i) {
    std::vector<Use> uses;
    for (uint32_t o = 0; o < test_case.objects.size(); ++o) {
      if (!chance(random, density)) {
        continue;
      }
      Use use;
      use.object = ObjectId{o};
      const bool on_device =
          has_device && (test_case.objects[o].floor == Tier::device || chance(random, 65));
      use.tier = on_device ? Tier::device : Tier::host;
      use.access = alive[o] ? static_cast<Access>(random.below(3)) : Access::write;
      use.discard_after = chance(random, 15);
      alive[o] = !use.discard_after;
      uses.push_back(use);
    }
    test_case.run(fmt::format("op{}", i), chance(random, 50) ? Lane::compute : Lane::cpu_optimizer,
                  chance(random, 20) ? 0 : 1e-6 * static_cast<double>(random.below(100)),
                  std::move(uses));
  }
  test_case.rates = {1e7, 1e7, 5e7, 5e7, 1e-6};
  const auto slack = [&] {
    return chance(random, 40) ? 0 : kUnit * static_cast<int64_t>(random.below(30));
  };
  test_case.set_budgets(has_device, slack(), slack());
  test_case.place_homes();
  return test_case;
}

namespace {

using Value = int64_t;  ///< object * 1000 + version

Value value_of(uint32_t object, int64_t version) {
  return object * int64_t{1000} + version;
}

/// Arenas of units, each holding the value last written over it.
class ValueMachine {
 public:
  explicit ValueMachine(const Case& test_case)
      : case_(test_case),
        offsets_(test_case.objects.size()),
        stored_(test_case.objects.size(), -1) {
    arenas_[0].resize(static_cast<size_t>(test_case.budgets.device.count() / kUnit), -1);
    arenas_[1].resize(static_cast<size_t>(test_case.budgets.host.count() / kUnit), -1);
    for (uint32_t o = 0; o < test_case.objects.size(); ++o) {
      if (test_case.objects[o].home == Tier::nvme) {
        stored_[o] = value_of(o, 0);
      }
    }
    for (const Residency& r : test_case.initial) {
      offsets_[index_of(r.object)][static_cast<size_t>(r.tier)] = r.offset;
      store(index_of(r.object), r.tier, value_of(index_of(r.object), 0));
    }
    std::vector<int64_t> version(test_case.objects.size());
    for (const Operation& operation : test_case.trace.operations) {
      for (const Use& use : operation.uses) {
        before_.push_back(version[index_of(use.object)]);
        if (use.access != Access::read) {
          ++version[index_of(use.object)];
        }
      }
      first_use_.push_back(before_.size() - operation.uses.size());
    }
    last_version_ = version;
  }

  std::string execute(const Action& action) {
    const uint32_t o = index_of(action.object);
    switch (action.kind) {
      case ActionKind::drop:
        store(o, action.from, -2);
        return "";
      case ActionKind::place:
        offsets_[o][static_cast<size_t>(action.to)] = action.offset;
        store(o, action.to, -3);
        return "";
      case ActionKind::transfer: {
        const auto value = load(o, action.from);
        if (!value) {
          return "a transfer finds a torn copy of " + case_.objects[o].name;
        }
        if (action.to != Tier::nvme) {
          offsets_[o][static_cast<size_t>(action.to)] = action.offset;
        }
        store(o, action.to, *value);
        return "";
      }
      case ActionKind::operation:
        return execute_operation(action.operation);
    }
    return "";
  }

  std::string check_homes() {
    std::vector<bool> discarded(case_.objects.size());
    for (const Operation& operation : case_.trace.operations) {
      for (const Use& use : operation.uses) {
        discarded[index_of(use.object)] = use.discard_after;
      }
    }
    for (uint32_t o = 0; o < case_.objects.size(); ++o) {
      const auto& home = case_.objects[o].home;
      if (home && !discarded[o] && load(o, *home) != value_of(o, last_version_[o])) {
        return "the home of " + case_.objects[o].name + " is not current";
      }
    }
    return "";
  }

 private:
  std::string execute_operation(uint32_t index) {
    const Operation& operation = case_.trace.operations[index];
    for (size_t u = 0; u < operation.uses.size(); ++u) {
      const Use& use = operation.uses[u];
      const uint32_t o = index_of(use.object);
      const int64_t version = before_[first_use_[index] + u];
      if (use.access != Access::write && load(o, use.tier) != value_of(o, version)) {
        return operation.name + " reads a wrong value of " + case_.objects[o].name;
      }
      if (use.access != Access::read) {
        store(o, use.tier, value_of(o, version + 1));
      }
    }
    return "";
  }

  std::pair<size_t, size_t> units(uint32_t object, Tier tier) const {
    const auto first = static_cast<size_t>(offsets_[object][static_cast<size_t>(tier)] / kUnit);
    return {first, first + static_cast<size_t>(align_up(case_.objects[object].size.count(), kUnit) /
                                               kUnit)};
  }
  std::optional<Value> load(uint32_t object, Tier tier) const {
    if (tier == Tier::nvme) {
      return stored_[object];
    }
    const auto& arena = arenas_[static_cast<size_t>(tier)];
    const auto [first, last] = units(object, tier);
    for (size_t i = first; i < last; ++i) {
      if (arena[i] != arena[first]) {
        return std::nullopt;
      }
    }
    return arena[first];
  }
  void store(uint32_t object, Tier tier, Value value) {
    if (tier == Tier::nvme) {
      stored_[object] = value;
      return;
    }
    auto& arena = arenas_[static_cast<size_t>(tier)];
    const auto [first, last] = units(object, tier);
    std::fill(arena.begin() + static_cast<ptrdiff_t>(first),
              arena.begin() + static_cast<ptrdiff_t>(last), value);
  }

  const Case& case_;
  std::array<std::vector<Value>, 2> arenas_;
  std::vector<std::array<int64_t, 2>> offsets_;
  std::vector<Value> stored_;
  std::vector<int64_t> before_;
  std::vector<size_t> first_use_;
  std::vector<int64_t> last_version_;
};

}  // namespace

std::string replay_values(const Case& test_case, const Schedule& schedule, Random& random) {
  const auto& actions = schedule.actions;
  ReadyActions ready(actions);
  ValueMachine machine(test_case);
  while (!ready.empty()) {
    const uint32_t next = ready.take(random);
    if (std::string wrong = machine.execute(actions[next]); !wrong.empty()) {
      return wrong;
    }
    ready.end(next);
  }
  return machine.check_homes();
}

std::string violations(const CompileInput& input, const Schedule& schedule) {
  std::string text;
  for (const std::string& violation : check_schedule(input, schedule)) {
    text += violation + "\n";
  }
  return text;
}

Rounds run_rounds(Case test_case, const Policy& policy, int rounds) {
  Rounds result;
  for (int round = 0; round < rounds; ++round) {
    const CompileInput input = test_case.input();
    result.last = policy.compile(input);
    EXPECT_EQ(violations(input, result.last), "") << policy.name() << ", round " << round;
    result.seconds = simulate(input, result.last).seconds;
    const StepBound bound = channel_bound(input, result.last);
    result.bound = bound.seconds;
    result.bound_lane = bound.lane;
    EXPECT_GE(result.seconds, result.bound * (1 - 1e-9));
    test_case.initial = result.last.final;
  }
  return result;
}

}  // namespace headrace::scheduler::test
