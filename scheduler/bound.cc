#include <algorithm>
#include <iterator>

#include "scheduler/costs.h"

namespace headrace::scheduler {

namespace {

void set_busiest(StepBound& bound) {
  for (size_t lane = 0; lane < std::size(bound.lane_seconds); ++lane) {
    if (bound.lane_seconds[lane] > bound.seconds) {
      bound.seconds = bound.lane_seconds[lane];
      bound.lane = static_cast<Lane>(lane);
    }
  }
}

}  // namespace

StepBound& StepBound::operator+=(const StepBound& other) {
  for (size_t i = 0; i < std::size(lane_seconds); ++i) {
    lane_seconds[i] += other.lane_seconds[i];
  }
  set_busiest(*this);
  return *this;
}

StepBound channel_bound(const CompileInput& input, const Schedule& schedule) {
  LaneSeconds alone{};
  for (const Action& action : schedule.actions) {
    const auto lane = lane_of(input, action);
    if (!lane) {
      continue;
    }
    alone[static_cast<size_t>(*lane)] += occupancy_of(input, action);
    if (action.kind == ActionKind::transfer && is_direct(action.from, action.to)) {
      const Bytes size = (*input.objects)[index_of(action.object)].size;
      alone[static_cast<size_t>(Lane::host_to_device)] +=
          static_cast<double>(size.count()) / input.rates.host_to_device;
    }
  }
  return channel_bound(input.rates, alone);
}

StepBound channel_bound(const Rates& rates, const LaneSeconds& alone) {
  StepBound bound;
  std::copy(alone.begin(), alone.end(), bound.lane_seconds);
  double& reading = bound.lane_seconds[static_cast<size_t>(Lane::nvme_read)];
  double& writing = bound.lane_seconds[static_cast<size_t>(Lane::nvme_write)];
  const DriveSeconds drive = drive_seconds(rates, {reading, writing});
  reading = drive.reading;
  writing = drive.writing;
  set_busiest(bound);
  return bound;
}

}  // namespace headrace::scheduler
