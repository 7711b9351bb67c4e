#pragma once

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "engine/executor.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// What a lane was found to do in one step.
struct LaneRate {
  double bytes_per_second = 0;
  double latency = 0;  ///< seconds
};

/// Rate and latency that explain the busy periods: seconds = latency + bytes / rate, for the
/// transfers of a period share its latency. Empty where nothing was moved.
std::optional<LaneRate> fit_lane(const std::vector<BusyPeriod>& periods);

/// What the last steps of a run took: durations of the operations of one trace, rates and latencies
/// of the lanes, the time of a commit. A step that took far longer than the others does not count.
/// Not thread-safe.
class LearnedCosts {
 public:
  void note(const RunReport& report, double commit_seconds);

  int64_t steps() const { return steps_; }
  /// Sets the estimates of the operations of the trace that was run.
  void apply_to(scheduler::Trace& trace) const;
  /// Sets what is known of the lanes; one that moved nothing keeps its rate.
  void apply_to(scheduler::Rates& rates) const;
  double commit_seconds() const;

 private:
  struct Step {
    std::vector<double> operation_seconds;
    double all_operations = 0;  ///< their sum
    std::array<std::optional<LaneRate>, scheduler::kLaneCount> lanes;
    double commit_seconds = 0;
  };

  std::vector<const Step*> undisturbed() const;
  /// Median over the steps in which the lane moved something; empty: none.
  std::optional<LaneRate> rate_of(scheduler::Lane lane) const;

  int64_t steps_ = 0;
  std::deque<Step> last_;
};

}  // namespace headrace::engine
