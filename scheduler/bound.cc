#include <iterator>

#include "scheduler/costs.h"

namespace headrace::scheduler {

StepBound channel_bound(const CompileInput& input, const Schedule& schedule) {
  StepBound bound;
  for (const Action& action : schedule.actions) {
    const auto lane = lane_of(input, action);
    if (lane) {
      bound.lane_seconds[static_cast<size_t>(*lane)] += occupancy_of(input, action);
    }
  }
  for (size_t lane = 0; lane < std::size(bound.lane_seconds); ++lane) {
    if (bound.lane_seconds[lane] > bound.seconds) {
      bound.seconds = bound.lane_seconds[lane];
      bound.lane = static_cast<Lane>(lane);
    }
  }
  return bound;
}

}  // namespace headrace::scheduler
