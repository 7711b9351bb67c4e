#pragma once

#include "engine/plan_layout.h"

namespace headrace::engine {

/// The plan that is predicted to be fastest among the accumulation orders, update modes, shard and
/// tile sizes, recompute levels and shares of the optimizer on the device that the request allows
/// and the budgets hold. `smallest` is smallest_plan() of the input in its budgets, which fits.
MemoryPlan choose_plan(const PlanInput& input, const MemoryPlan& smallest);

}  // namespace headrace::engine
