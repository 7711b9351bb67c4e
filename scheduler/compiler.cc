#include "scheduler/compiler.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "scheduler/costs.h"
#include "scheduler/input_check.h"
#include "scheduler/placement.h"
#include "scheduler/simulator.h"

namespace headrace::scheduler {

namespace {

/// One walk over the trace. An operation's device uses are served first, while nothing in the host
/// is pinned, so that the way through the host is open; then its host uses.
class Compiler {
 public:
  Compiler(const CompileInput& input, const Footprint& footprint, const VictimModel& model,
           const std::vector<OperationGuide>* guides, const ArenaModel& arenas)
      : input_(input),
        footprint_(footprint),
        guides_(guides),
        next_use_(input),
        plan_(input),
        memory_(input, footprint, model, next_use_, plan_, arenas) {}

  Schedule run() {
    walk();
    Schedule schedule = plan_.finish();
    schedule.initial = input_.initial;
    schedule.final = memory_.residents();
    return schedule;
  }

  UnplacedSchedule run_unplaced() {
    walk();
    return {plan_.finish(), plan_.take_ends()};
  }

 private:
  void walk() {
    for (uint32_t i = 0; i < input_.trace->operations.size(); ++i) {
      step(i);
    }
    if (input_.foresight != Foresight::expected_part) {
      memory_.finish();
    }
    prefetch(input_.trace->operations.size(), Tier::device);
    prefetch(input_.trace->operations.size(), Tier::host);
  }

  void step(uint32_t index) {
    const Operation& operation = input_.trace->operations[index];
    memory_.begin_operation(index);
    // Host slots first: making room for a slot of the device may need the way through the host.
    for (const Tier tier : {Tier::host, Tier::device}) {
      for (const ObjectId object : footprint_.anchored_from[index]) {
        if (anchor_of((*input_.objects)[index_of(object)]) == tier) {
          memory_.take_anchor(object);
        }
      }
    }
    // The device is served while nothing in the host is pinned: see Memory.
    serve(index, Tier::device);
    prefetch(index, Tier::device);
    serve(index, Tier::host);
    prefetch(index, Tier::host);
    if (is_certain()) {
      drop_stale(operation);
      plan_.operation(index);
    } else {
      // The old value is there until the operation has come. A slot that waits for a new value
      // passes for a copy: only now, when nothing is evicted any more.
      prepare_writes(operation);
      plan_.operation(index);
      drop_stale(operation);
    }
    for (const Use& use : operation.uses) {
      memory_.unpin(use.object, use.tier);
      memory_.after_use(use);
    }
    if (guides_ != nullptr) {
      for (const ObjectId object : (*guides_)[index].release) {
        memory_.release(object);
      }
    }
    for (const ObjectId object : footprint_.anchored_until[index]) {
      memory_.give_anchor(object);
    }
  }

  bool is_certain() const { return input_.foresight == Foresight::whole_step; }

  void prepare_writes(const Operation& operation) {
    for (const Use& use : operation.uses) {
      if (use.access == Access::write) {
        memory_.prepare_write(use.object, use.tier);
      }
    }
  }

  /// What the operation changes is not current in other tiers.
  void drop_stale(const Operation& operation) {
    for (const Use& use : operation.uses) {
      if (writes(use.access)) {
        memory_.drop_others(use.object, use.tier);
      }
    }
  }

  void prefetch(size_t index, Tier tier) {
    if (guides_ == nullptr || (*guides_)[index].prefetch_tier != tier) {
      return;
    }
    for (const ObjectId object : (*guides_)[index].prefetch) {
      memory_.prefetch(object, tier, (*guides_)[index].live);
    }
  }

  /// Gives all uses of the operation in one tier their slots, pinned, and then their values.
  void serve(uint32_t index, Tier tier) {
    std::vector<ObjectId> resident;
    std::vector<ObjectId> missing;
    for (const Use& use : input_.trace->operations[index].uses) {
      if (use.tier != tier) {
        continue;
      }
      if (memory_.has_slot(use.object, tier)) {
        memory_.pin(use.object, tier);
        if (anchor_of((*input_.objects)[index_of(use.object)]) != tier) {
          resident.push_back(use.object);
        }
      } else {
        missing.push_back(use.object);
      }
    }
    if (!allocate_all(missing, tier)) {
      compact(index, tier, resident, missing);
    }
    for (const Use& use : input_.trace->operations[index].uses) {
      if (use.tier != tier) {
        continue;
      }
      if (use.access != Access::write) {
        memory_.bring(use.object, tier);
      } else if (is_certain()) {
        memory_.prepare_write(use.object, tier);
      }
    }
  }

  /// Largest first; on failure the slots that were taken are given back.
  bool allocate_all(std::vector<ObjectId>& missing, Tier tier) {
    std::stable_sort(missing.begin(), missing.end(),
                     [&](ObjectId a, ObjectId b) { return memory_.size(a) > memory_.size(b); });
    for (size_t i = 0; i < missing.size(); ++i) {
      if (memory_.try_allocate(missing[i], tier)) {
        memory_.pin(missing[i], tier);
        continue;
      }
      while (i-- > 0) {
        memory_.cancel_allocation(missing[i], tier);
      }
      return false;
    }
    return true;
  }

  /// The operation's own slots split the space. Moves them, the smallest first, until the missing
  /// ones find room; in the end lays all of them out side by side, for which the capacity check
  /// has made sure that there is room.
  void compact(uint32_t index, Tier tier, std::vector<ObjectId> resident,
               std::vector<ObjectId> missing) {
    std::stable_sort(resident.begin(), resident.end(),
                     [&](ObjectId a, ObjectId b) { return memory_.size(a) < memory_.size(b); });
    for (const ObjectId object : resident) {
      memory_.unpin(object, tier);
      memory_.evict(object, tier);
      missing.push_back(object);
      if (allocate_all(missing, tier)) {
        return;
      }
    }
    const auto t = static_cast<size_t>(tier);
    int64_t offset = footprint_.homes[t] + footprint_.anchored_top[t][index];
    for (const ObjectId object : missing) {
      memory_.allocate_at(object, tier, offset);
      memory_.pin(object, tier);
      offset += memory_.size(object);
    }
  }

  const CompileInput& input_;
  const Footprint& footprint_;
  const std::vector<OperationGuide>* guides_;
  NextUse next_use_;
  PlanBuilder plan_;
  Memory memory_;
};

/// Throws where the input is not valid or does not fit.
Footprint checked_footprint(const CompileInput& input) {
  HR_CHECK(input.trace != nullptr && input.objects != nullptr, "trace and objects must be given");
  check_trace(*input.trace, *input.objects, input.budgets.alignment, input.initial);
  Footprint footprint = measure_footprint(input);
  check_capacity(input, footprint);
  check_initial(input, footprint);
  return footprint;
}

/// For the walk, which does not know when the drive's other direction will be idle, as the
/// simulation does.
CompileInput loaded(CompileInput input) {
  input.rates = under_load(input.rates);
  return input;
}

Schedule ordered(const CompileInput& input, Schedule schedule) {
  schedule.actions = order_by_start(input, std::move(schedule.actions));
  return schedule;
}

}  // namespace

Schedule compile_with(const CompileInput& input, const VictimModel& model,
                      const std::vector<OperationGuide>* guides) {
  const Footprint footprint = checked_footprint(input);
  const CompileInput walked = loaded(input);
  return ordered(input, Compiler(walked, footprint, model, guides, {}).run());
}

UnplacedSchedule compile_unplaced(const CompileInput& input, const VictimModel& model) {
  const Footprint footprint = checked_footprint(input);
  const CompileInput walked = loaded(input);
  return Compiler(walked, footprint, model, nullptr, {false, nullptr}).run_unplaced();
}

Schedule compile_placed(const CompileInput& input, const VictimModel& model,
                        const UnplacedSchedule& unplaced) {
  const Footprint footprint = checked_footprint(input);
  const CompileInput walked = loaded(input);
  const SlotPlan places(walked, footprint, unplaced);
  return ordered(input, Compiler(walked, footprint, model, nullptr, {true, &places}).run());
}

}  // namespace headrace::scheduler
