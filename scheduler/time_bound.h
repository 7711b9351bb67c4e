#pragma once

#include "scheduler/boundary_bound.h"
#include "scheduler/lower_bound.h"

namespace headrace::scheduler {

/// Fills the times of a bound whose bytes are known.
void bound_time(const CompileInput& input, const std::vector<ValueLife>& lives,
                const BoundaryBound& link, const BoundaryBound& drive, LowerBound& bound);

}  // namespace headrace::scheduler
