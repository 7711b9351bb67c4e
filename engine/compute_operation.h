#pragma once

#include <string>
#include <vector>

#include "engine/step_trace.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// One operation of the compute lane.
struct ComputeOperation {
  std::string name;
  double seconds = 0;
  std::vector<scheduler::Use> uses;
  StepOperation step;
};

}  // namespace headrace::engine
