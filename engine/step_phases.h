#pragma once

#include <vector>

#include "engine/step_trace.h"

namespace headrace::engine {

/// The wall time of a step by what the network is at, as DeepSpeed's wall clock timers have it; the
/// parts add up to the step. Work that overlaps is in the phase that it overlaps with.
struct StepPhases {
  double forward = 0;
  double backward = 0;  ///< with the head, whose forward and backward are one operation
  double step = 0;      ///< what is left behind the last backward: norm, updates, commit
};

/// `ends`: when each operation of the trace ended, in seconds from its start; `total`: when the
/// last of everything had ended. A phase begins where the one before it has ended.
StepPhases phases_of(const StepTrace& trace, const std::vector<double>& ends, double total);

}  // namespace headrace::engine
