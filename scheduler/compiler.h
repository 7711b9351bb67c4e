#pragma once

#include "scheduler/memory.h"

namespace headrace::scheduler {

/// Checks the input, walks the trace and makes the schedule; the model chooses the victims.
Schedule compile_with(const CompileInput& input, const VictimModel& model);

}  // namespace headrace::scheduler
