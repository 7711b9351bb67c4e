#include "scheduler/direct_reads.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "scheduler/costs.h"
#include "scheduler/placement.h"
#include "scheduler/plan_builder.h"
#include "scheduler/simulator.h"

namespace headrace::scheduler {

namespace {

/// Two simulated times are the same, but for rounding.
constexpr double kAsFast = 1 + 1e-9;

/// The three actions, by index, that one direct read takes the place of.
struct WayThroughHost {
  uint32_t read = 0;
  uint32_t copy = 0;
  uint32_t drop = 0;
};

/// Walks the actions of a schedule and finds values that pass the host for the device alone.
class Finder {
 public:
  Finder(const CompileInput& input, const std::vector<Action>& actions)
      : input_(input), actions_(actions), open_(input.objects->size()) {}

  std::vector<WayThroughHost> run() {
    for (uint32_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (action.kind == ActionKind::operation) {
        for (const Use& use : input_.trace->operations[action.operation].uses) {
          // On the device it is served by the copy, which a new value would not be.
          if (use.tier == Tier::host || writes(use.access)) {
            at(use.object).stage = is_copied(use) ? Stage::copied : Stage::none;
          }
        }
      } else {
        move(i);
      }
    }
    return std::move(found_);
  }

 private:
  /// How far the current copy of an object in the host is on its way.
  enum class Stage : uint8_t { none, read, copied };
  struct Open {
    Stage stage = Stage::none;
    WayThroughHost way;
  };

  Open& at(ObjectId object) { return open_[index_of(object)]; }

  /// A new value on the device makes the host's copy stale, and no more: it has served.
  bool is_copied(const Use& use) {
    return use.tier == Tier::device && at(use.object).stage == Stage::copied;
  }

  void move(uint32_t index) {
    const Action& action = actions_[index];
    Open& open = at(action.object);
    const auto is_transfer = [&](Tier from, Tier to) {
      return action.kind == ActionKind::transfer && action.from == from && action.to == to;
    };
    const bool is_drop = action.kind == ActionKind::drop;
    if (is_transfer(Tier::nvme, Tier::host)) {
      open = {Stage::read, {index, 0, 0}};
    } else if (is_transfer(Tier::host, Tier::device)) {
      const bool is_first = open.stage == Stage::read;
      open.stage = is_first ? Stage::copied : Stage::none;
      open.way.copy = index;
    } else if (is_drop && action.from == Tier::host) {
      if (open.stage == Stage::copied) {
        open.way.drop = index;
        found_.push_back(open.way);
      }
      open.stage = Stage::none;
    } else if (is_drop && action.from == Tier::device) {
      return;  // the copy in the host has not come from there
    } else if (!(is_drop && open.stage == Stage::copied)) {
      // A value on nvme that is dropped once it has been copied is not read again.
      open.stage = Stage::none;
    }
  }

  const CompileInput& input_;
  const std::vector<Action>& actions_;
  std::vector<Open> open_;
  std::vector<WayThroughHost> found_;
};

/// The actions with direct reads in the place of these ways, with the dependencies that are left.
Schedule rebuild(const CompileInput& input, const Schedule& schedule,
                 std::span<const WayThroughHost> ways) {
  enum class Fate : uint8_t { stays, direct, gone };
  std::vector<Fate> fates(schedule.actions.size(), Fate::stays);
  for (const WayThroughHost& way : ways) {
    fates[way.read] = fates[way.drop] = Fate::gone;
    fates[way.copy] = Fate::direct;
  }
  std::vector<std::array<int64_t, kTierCount>> slots(input.objects->size(), {-1, -1, 0});
  PlanBuilder plan(input);
  for (const Residency& residency : input.initial) {
    slots[index_of(residency.object)][static_cast<size_t>(residency.tier)] = residency.offset;
    plan.note_slot(residency.object, residency.tier, residency.offset);
  }
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (fates[i] == Fate::gone) {
      continue;
    }
    if (action.kind == ActionKind::operation) {
      plan.operation(action.operation);
      continue;
    }
    int64_t& slot = slots[index_of(action.object)][static_cast<size_t>(action.to)];
    if (action.kind == ActionKind::drop) {
      plan.drop(action.object, action.from, slot);
      slot = action.from == Tier::nvme ? 0 : -1;
    } else if (action.kind == ActionKind::place) {
      slot = action.offset;
      plan.place(action.object, action.to, slot, 0);
    } else {
      const Tier from = fates[i] == Fate::direct ? Tier::nvme : action.from;
      const bool is_new = slot < 0;
      slot = action.offset;
      plan.transfer(action.object, from, action.to, slot, is_new, 0);
    }
  }
  Schedule result = plan.finish();
  result.actions = order_by_start(input, std::move(result.actions));
  result.initial = schedule.initial;
  result.final = schedule.final;
  return result;
}

/// Sorts the ways by how much later than the begin of the read into the host the slot of the device
/// is free; returns how many are not later at all.
size_t order_by_slot(const CompileInput& input, const Schedule& schedule,
                     std::vector<WayThroughHost>& ways) {
  const ActionTimes times = simulate_actions(input, schedule.actions);
  const auto lateness = [&](const WayThroughHost& way) {
    double free = 0;
    for (const uint32_t before : schedule.actions[way.copy].after) {
      free = before == way.read ? free : std::max(free, times.end[before]);
    }
    return free - times.begin[way.read];
  };
  std::stable_sort(ways.begin(), ways.end(), [&](const WayThroughHost& x, const WayThroughHost& y) {
    return lateness(x) < lateness(y);
  });
  return static_cast<size_t>(std::count_if(
      ways.begin(), ways.end(), [&](const WayThroughHost& way) { return lateness(way) <= 0; }));
}

class DirectReadsPolicy final : public Policy {
 public:
  explicit DirectReadsPolicy(std::unique_ptr<Policy> policy) : policy_(std::move(policy)) {}
  std::string_view name() const override { return policy_->name(); }
  Schedule compile(const CompileInput& input) const override {
    return add_direct_reads(input, policy_->compile(input));
  }

 private:
  std::unique_ptr<Policy> policy_;
};

}  // namespace

Schedule add_direct_reads(const CompileInput& input, Schedule schedule) {
  if (input.rates.direct_share <= 0) {
    return schedule;
  }
  std::vector<WayThroughHost> ways = Finder(input, schedule.actions).run();
  if (ways.empty()) {
    return schedule;
  }
  const size_t early = order_by_slot(input, schedule, ways);
  double least = simulate(input, schedule).seconds;
  Schedule best = schedule;
  const auto is_no_slower = [&](size_t count) {
    Schedule direct = rebuild(input, schedule, std::span(ways).first(count));
    const double seconds = simulate(input, direct).seconds;
    if (seconds > least * kAsFast) {
      return false;
    }
    least = std::min(least, seconds);
    best = std::move(direct);
    return true;
  };
  size_t taken = early > 0 && is_no_slower(early) ? early : 0;
  size_t refused = ways.size() + 1;
  for (size_t next = ways.size(); next > taken; next = taken + (refused - taken) / 2) {
    (is_no_slower(next) ? taken : refused) = next;
  }
  return best;
}

std::unique_ptr<Policy> with_direct_reads(std::unique_ptr<Policy> policy) {
  return std::make_unique<DirectReadsPolicy>(std::move(policy));
}

}  // namespace headrace::scheduler
