#include "engine/paced_body.h"

#include <thread>
#include <utility>

namespace headrace::engine {

Pace::Pace(LeastSeconds least_seconds, device::Stream& compute)
    : least_seconds_(std::move(least_seconds)), compute_(compute) {}

OperationBody Pace::wrap(const scheduler::Trace& trace, const OperationBody& body) {
  if (!least_seconds_) {
    return body;
  }
  return [this, &trace, body](uint32_t number, UseBytes uses) {
    const scheduler::Operation& operation = trace.operations[number];
    const bool computes = operation.lane == scheduler::Lane::compute;
    const auto end = (computes ? compute_lane_ : cpu_lane_)
                         .admit_for(RateLane::Clock::now(), least_seconds_(operation))
                         .end;
    body(number, uses);
    if (computes) {
      compute_.run_on_host([end] { std::this_thread::sleep_until(end); });
    } else {
      std::this_thread::sleep_until(end);
    }
  };
}

}  // namespace headrace::engine
