#pragma once

#include <string>
#include <vector>

#include "scheduler/footprint.h"
#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// What an operation may do next with an object.
enum class Life : uint8_t { unborn, alive, dead };

/// What keeps an operation from running on objects with these lives, as a sentence that names both;
/// empty when nothing does. Moves the lives on to behind the operation.
std::string pass_operation(const Operation& operation, const std::vector<ObjectFacts>& objects,
                           std::vector<Life>& lives);

/// Throws InputError, naming operation and object, unless uses and facts are consistent: known
/// objects, each at most once per operation, in device or host but not below their floor, and every
/// value written before it is read. Objects in `initial` have a value.
void check_trace(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes alignment,
                 const std::vector<Residency>& initial = {});

/// Throws InputError unless the initial residency is possible: inside the budgets, aligned, without
/// overlap, home slots complete and packed at the low end.
void check_initial(const CompileInput& input, const Footprint& footprint);

/// Throws CapacityError, naming the operation, the tier, the bytes needed and available, when an
/// operation does not fit.
void check_capacity(const CompileInput& input, const Footprint& footprint);

}  // namespace headrace::scheduler
