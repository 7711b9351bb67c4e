#pragma once

#include <string>

#include "engine/trainer.h"

namespace headrace::tools {

/// One line about a step, without an end of line: loss, pace, the busiest lane and its share of the
/// step's time, and how close the step ran to its bound.
std::string step_line(const engine::StepReport& report);

/// What wall_clock_breakdown adds: the phases in milliseconds, as DeepSpeed's timers.
std::string phases_line(const engine::StepPhases& phases);
/// Where the time went, in percent.
std::string split_line(const engine::TimeSplit& split);

/// What memory_breakdown adds: each tier's largest use in the step by kind of object, the process,
/// and nvme. Several lines, without the last end of line.
std::string memory_lines(const engine::MemoryUse& use);

}  // namespace headrace::tools
