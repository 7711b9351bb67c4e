#pragma once

#include "scheduler/footprint.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Throws InputError, naming operation and object, unless uses and facts are consistent: known
/// objects, each at most once per operation, in device or host but not below their floor, and every
/// value written before it is read.
void check_trace(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes alignment);

/// Throws InputError unless the initial residency is possible: inside the budgets, aligned, without
/// overlap, home slots complete and packed at the low end.
void check_initial(const CompileInput& input, const Footprint& footprint);

/// Throws CapacityError, naming the operation, the tier, the bytes needed and available, when an
/// operation does not fit.
void check_capacity(const CompileInput& input, const Footprint& footprint);

}  // namespace headrace::scheduler
