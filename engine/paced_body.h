#pragma once

#include <functional>
#include <memory>

#include "base/rate_lane.h"
#include "device/device.h"
#include "engine/executor.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// Seconds that an operation takes at least.
using LeastSeconds = std::function<double(const scheduler::Operation&)>;

/// Makes operations take at least a given time, by sleeping on their lane after their work: for
/// tests and benchmarks, whose lanes must have a known rate. The lanes' times are virtual, as
/// RateLane's.
class Pace {
 public:
  /// `least_seconds` empty: bodies stay as they are.
  Pace(LeastSeconds least_seconds, device::Stream& compute);

  /// Body of an execution of `trace`; one execution at a time.
  OperationBody wrap(const scheduler::Trace& trace, const OperationBody& body);

 private:
  LeastSeconds least_seconds_;
  device::Stream& compute_;
  RateLane compute_lane_;  ///< of the thread that calls the bodies of compute operations
  RateLane cpu_lane_;      ///< of the thread of CPU operations
};

}  // namespace headrace::engine
