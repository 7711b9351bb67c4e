#include "scheduler/input_check.h"

#include <algorithm>

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

/// What an operation may do next with an object.
enum class Life : uint8_t { unborn, alive, dead };

void check_use(const Operation& operation, const Use& use, const ObjectFacts& facts, Life life) {
  const auto fail = [&](std::string_view what) {
    return InputError(
        fmt::format("operation '{}', object '{}': {}", operation.name, facts.name, what));
  };
  if (use.tier == Tier::nvme) {
    throw fail("operations use objects in device or host, not nvme");
  }
  if (use.tier > facts.floor) {
    throw fail("used in host, but its floor is device");
  }
  if (life != Life::alive && use.access != Access::write) {
    throw fail(life == Life::unborn ? "used before it is written, and it has no home"
                                    : "used after its value was discarded; it must be written");
  }
}

const ObjectFacts& facts_of(const CompileInput& input, const Residency& residency) {
  if (index_of(residency.object) >= input.objects->size()) {
    throw InputError(fmt::format("initial residency: object {} is unknown; there are {}",
                                 index_of(residency.object), input.objects->size()));
  }
  return (*input.objects)[index_of(residency.object)];
}

void check_residency(const CompileInput& input, const Footprint& footprint,
                     const Residency& residency) {
  const ObjectFacts& facts = facts_of(input, residency);
  const auto fail = [&](std::string_view what) {
    return InputError(fmt::format("initial residency of '{}' in {} at {}: {}", facts.name,
                                  to_string(residency.tier), residency.offset, what));
  };
  if (!facts.home) {
    throw fail("an object without home cannot outlive a trace");
  }
  if (residency.tier > facts.floor) {
    throw fail("below the object's floor");
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

void check_trace(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes alignment) {
  if (alignment.count() <= 0) {
    throw InputError(fmt::format("alignment {} must be positive", alignment));
  }
  std::vector<Life> life(objects.size());
  std::vector<int64_t> last_operation(objects.size(), -1);
  for (size_t o = 0; o < objects.size(); ++o) {
    check_object(objects[o]);
    life[o] = objects[o].home ? Life::alive : Life::unborn;
  }
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    const Operation& operation = trace.operations[i];
    if (operation.lane != Lane::compute && operation.lane != Lane::cpu_optimizer) {
      throw InputError(fmt::format("operation '{}': lane {} only moves data", operation.name,
                                   to_string(operation.lane)));
    }
    for (const Use& use : operation.uses) {
      const uint32_t o = index_of(use.object);
      if (o >= objects.size()) {
        throw InputError(fmt::format("operation '{}': object {} is unknown; there are {}",
                                     operation.name, o, objects.size()));
      }
      if (last_operation[o] == static_cast<int64_t>(i)) {
        throw InputError(
            fmt::format("operation '{}' uses object '{}' twice", operation.name, objects[o].name));
      }
      last_operation[o] = static_cast<int64_t>(i);
      check_use(operation, use, objects[o], life[o]);
      life[o] = use.discard_after ? Life::dead : Life::alive;
    }
  }
}

void check_initial(const CompileInput& input, const Footprint& footprint) {
  std::vector<Residency> sorted;
  std::vector<std::array<uint8_t, kTierCount>> seen(input.objects->size());
  for (const Residency& residency : input.initial) {
    const ObjectFacts& facts = facts_of(input, residency);
    if (residency.tier == Tier::nvme) {
      continue;
    }
    check_residency(input, footprint, residency);
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
