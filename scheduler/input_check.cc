#include "scheduler/input_check.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

void check_object(const ObjectFacts& facts) {
  if (facts.size.count() <= 0) {
    throw InputError(fmt::format("object '{}': size {} must be positive", facts.name, facts.size));
  }
  if (facts.home && *facts.home > facts.floor) {
    throw InputError(fmt::format("object '{}': home {} is below its floor {}", facts.name,
                                 to_string(*facts.home), to_string(facts.floor)));
  }
}

std::string fault_of_use(const Use& use, const ObjectFacts& facts, Life life) {
  if (use.tier == Tier::nvme) {
    return "operations use objects in device or host, not nvme";
  }
  if (use.tier > facts.floor) {
    return "used in host, but its floor is device";
  }
  if (life == Life::alive || use.access == Access::write) {
    return "";
  }
  if (life == Life::dead) {
    return "used after its value was discarded; it must be written";
  }
  return facts.home ? "used before it is written" : "used before it is written, and it has no home";
}

/// The first object that the operation names a second time.
std::optional<ObjectId> object_used_twice(const Operation& operation) {
  std::vector<ObjectId> used;
  used.reserve(operation.uses.size());
  for (const Use& use : operation.uses) {
    used.push_back(use.object);
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  return twice == used.end() ? std::nullopt : std::optional(*twice);
}

void check_residency(const CompileInput& input, const Footprint& footprint,
                     const Residency& residency) {
  const ObjectFacts& facts = (*input.objects)[index_of(residency.object)];
  const auto fail = [&](std::string_view what) {
    return InputError(fmt::format("initial residency of '{}' in {} at {}: {}", facts.name,
                                  to_string(residency.tier), residency.offset, what));
  };
  if (!facts.home && input.foresight == Foresight::whole_step) {
    throw fail("an object without home cannot outlive a step");
  }
  if (residency.tier > facts.floor) {
    throw fail("below the object's floor");
  }
  if (residency.tier == Tier::nvme) {
    return;
  }
  const auto t = static_cast<size_t>(residency.tier);
  const Bytes budget = residency.tier == Tier::device ? input.budgets.device : input.budgets.host;
  const int64_t end = residency.offset + slot_bytes(facts, input.budgets.alignment);
  if (residency.offset < 0 || residency.offset % input.budgets.alignment.count() != 0) {
    throw fail("the offset is not aligned");
  }
  if (end > budget.count()) {
    throw fail(fmt::format("ends beyond the budget of {}", budget));
  }
  const bool home = has_home_in(facts, residency.tier);
  if (home && end > footprint.homes[t]) {
    throw fail("home slots must be packed at the low end");
  }
  if (home && residency.dirty) {
    throw fail("a home copy cannot be dirty");
  }
}

}  // namespace

std::string pass_operation(const Operation& operation, const std::vector<ObjectFacts>& objects,
                           std::vector<Life>& lives) {
  if (operation.lane != Lane::compute && operation.lane != Lane::cpu_optimizer) {
    return fmt::format("operation '{}': lane {} only moves data", operation.name,
                       to_string(operation.lane));
  }
  for (const Use& use : operation.uses) {
    const uint32_t o = index_of(use.object);
    if (o >= objects.size()) {
      return fmt::format("operation '{}': object {} is unknown; there are {}", operation.name, o,
                         objects.size());
    }
    if (const std::string fault = fault_of_use(use, objects[o], lives[o]); !fault.empty()) {
      return fmt::format("operation '{}', object '{}': {}", operation.name, objects[o].name, fault);
    }
  }
  if (const auto twice = object_used_twice(operation)) {
    return fmt::format("operation '{}' uses object '{}' twice", operation.name,
                       objects[index_of(*twice)].name);
  }
  for (const Use& use : operation.uses) {
    lives[index_of(use.object)] = use.discard_after ? Life::dead : Life::alive;
  }
  return "";
}

void check_trace(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes alignment,
                 const std::vector<Residency>& initial) {
  if (alignment.count() <= 0) {
    throw InputError(fmt::format("alignment {} must be positive", alignment));
  }
  std::vector<Life> lives(objects.size());
  for (size_t o = 0; o < objects.size(); ++o) {
    check_object(objects[o]);
    lives[o] = objects[o].home ? Life::alive : Life::unborn;
  }
  for (const Residency& residency : initial) {
    if (index_of(residency.object) >= objects.size()) {
      throw InputError(fmt::format("initial residency: object {} is unknown; there are {}",
                                   index_of(residency.object), objects.size()));
    }
    lives[index_of(residency.object)] = Life::alive;
  }
  for (const Operation& operation : trace.operations) {
    if (const std::string fault = pass_operation(operation, objects, lives); !fault.empty()) {
      throw InputError(fault);
    }
  }
}

void check_initial(const CompileInput& input, const Footprint& footprint) {
  std::vector<Residency> sorted;
  std::vector<std::array<uint8_t, kTierCount>> seen(input.objects->size());
  for (const Residency& residency : input.initial) {
    const ObjectFacts& facts = (*input.objects)[index_of(residency.object)];
    check_residency(input, footprint, residency);
    if (residency.tier == Tier::nvme) {
      continue;
    }
    uint8_t& count = seen[index_of(residency.object)][static_cast<size_t>(residency.tier)];
    if (count++ != 0) {
      throw InputError(fmt::format("initial residency: '{}' appears twice in {}", facts.name,
                                   to_string(residency.tier)));
    }
    sorted.push_back(residency);
  }
  for (size_t o = 0; o < seen.size(); ++o) {
    const auto& home = (*input.objects)[o].home;
    if (home && *home != Tier::nvme && seen[o][static_cast<size_t>(*home)] == 0) {
      throw InputError(fmt::format("initial residency: the home slot of '{}' in {} is missing",
                                   (*input.objects)[o].name, to_string(*home)));
    }
  }
  std::sort(sorted.begin(), sorted.end(), [](const Residency& a, const Residency& b) {
    return std::pair(a.tier, a.offset) < std::pair(b.tier, b.offset);
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const ObjectFacts& before = (*input.objects)[index_of(sorted[i - 1].object)];
    if (sorted[i - 1].tier == sorted[i].tier &&
        sorted[i - 1].offset + slot_bytes(before, input.budgets.alignment) > sorted[i].offset) {
      throw InputError(fmt::format("initial residency in {}: '{}' overlaps '{}'",
                                   to_string(sorted[i].tier), before.name,
                                   (*input.objects)[index_of(sorted[i].object)].name));
    }
  }
}

void check_capacity(const CompileInput& input, const Footprint& footprint) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    const Bytes budget = tier == Tier::device ? input.budgets.device : input.budgets.host;
    const auto [needed, operation] = footprint.peak(tier);
    if (needed <= budget.count()) {
      continue;
    }
    const auto& operations = input.trace->operations;
    const std::string who =
        operation < operations.size()
            ? fmt::format("operation '{}' (number {} of trace '{}')", operations[operation].name,
                          operation, input.trace->name)
            : fmt::format("the resident state around trace '{}'", input.trace->name);
    throw CapacityError(fmt::format(
        "{} needs {} bytes ({}) of {} memory at once; {} bytes ({}) are available, {} are missing; "
        "raise the {} budget, or give objects a lower tier",
        who, needed, format_bytes(Bytes(needed)), to_string(tier), budget, format_bytes(budget),
        needed - budget.count(), to_string(tier)));
  }
}

}  // namespace headrace::scheduler
