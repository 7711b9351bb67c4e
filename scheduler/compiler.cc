#include "scheduler/compiler.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "scheduler/input_check.h"
#include "scheduler/placement.h"

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
        next_use_(*input.trace, *input.objects),
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
    return {plan_.take_unsorted(), plan_.take_ends()};
  }

 private:
  void walk() {
    for (uint32_t i = 0; i < input_.trace->operations.size(); ++i) {
      step(i);
    }
    memory_.finish();
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
    for (const Use& use : operation.uses) {
      if (writes(use.access)) {
        memory_.drop_others(use.object, use.tier);
      }
    }
    plan_.operation(index);
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
      if (use.access == Access::write) {
        memory_.prepare_write(use.object, tier);
      } else {
        memory_.bring(use.object, tier);
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
  check_trace(*input.trace, *input.objects, input.budgets.alignment);
  Footprint footprint = measure_footprint(*input.trace, *input.objects, input.budgets.alignment,
                                          input.budgets.device.count() > 0);
  check_capacity(input, footprint);
  check_initial(input, footprint);
  return footprint;
}

}  // namespace

Schedule compile_with(const CompileInput& input, const VictimModel& model,
                      const std::vector<OperationGuide>* guides) {
  const Footprint footprint = checked_footprint(input);
  return Compiler(input, footprint, model, guides, {}).run();
}

UnplacedSchedule compile_unplaced(const CompileInput& input, const VictimModel& model) {
  const Footprint footprint = checked_footprint(input);
  return Compiler(input, footprint, model, nullptr, {false, nullptr}).run_unplaced();
}

Schedule compile_placed(const CompileInput& input, const VictimModel& model,
                        const UnplacedSchedule& unplaced) {
  const Footprint footprint = checked_footprint(input);
  const SlotPlan places(input, footprint, unplaced);
  return Compiler(input, footprint, model, nullptr, {true, &places}).run();
}

}  // namespace headrace::scheduler
