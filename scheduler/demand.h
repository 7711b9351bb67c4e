#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Compiles operations that no trace has foretold, where others are expected to follow that are not
/// known either. Victims are what remembered traces use again latest: `next_use` has, by object, in
/// how many operations that will be, NextUse::kNever where no trace tells. Such objects go first,
/// the least recently used before the others. Throws as Policy::compile does.
Schedule compile_on_demand(const CompileInput& input, const std::vector<uint32_t>& next_use);

}  // namespace headrace::scheduler
