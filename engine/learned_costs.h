#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/executor.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// Of a trace; then its costs are known, and its schedules are no longer compiled anew.
inline constexpr int64_t kStepsToLearn = 2;

/// What a lane was found to do in one step.
struct LaneRate {
  double bytes_per_second = 0;
  double latency = 0;  ///< seconds
};

/// Rate and latency that explain the busy periods: seconds = latency + bytes / rate, for the
/// transfers of a period share its latency. Where the drive's other direction went on, too, only
/// `drive_share` of the time counts (scheduler::drive_share). Empty where nothing was moved.
std::optional<LaneRate> fit_lane(const std::vector<BusyPeriod>& periods, double drive_share = 1);

/// What the last steps of a run took: durations of the operations of one trace, rates and latencies
/// of the lanes, the time of a commit. A step that took far longer than the others does not count.
/// Not thread-safe.
class LearnedCosts {
 public:
  /// How much the directions of the drive slow each other is known from `rates`; a step does not
  /// tell.
  explicit LearnedCosts(const scheduler::Rates& rates);

  void note(const RunReport& report, double commit_seconds);

  int64_t steps() const { return steps_; }
  /// Sets the estimates of the operations of the trace that was run.
  void apply_to(scheduler::Trace& trace) const;
  /// Sets what is known of the lanes; one that moved nothing keeps its rate. Both directions of the
  /// drive together: their rates as measured, and their share of them as given.
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

  double drive_share_;
  int64_t steps_ = 0;
  std::deque<Step> last_;
};

}  // namespace headrace::engine
