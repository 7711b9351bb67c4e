#pragma once

#include "base/tier.h"
#include "base/units.h"
#include "engine/memory_plan.h"

namespace headrace::engine {

/// Throws CapacityError where a tier's budget is below the minimum, with both and the settings that
/// change it.
void require_budget(Bytes given, Bytes minimum, Tier tier, const MemoryRequest& request);

/// The same for the space on nvme.
void require_disk(const MemoryPlan& plan, const MemoryRequest& request);

}  // namespace headrace::engine
