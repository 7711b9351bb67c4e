#pragma once

#include <array>
#include <deque>
#include <vector>

#include "engine/executor.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// What the steps of a run have taken so far: durations of the operations of one trace, rates and
/// latencies of the lanes, the time of a commit. Old steps fade, so that estimates follow a machine
/// whose rates change. Not thread-safe.
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
  static constexpr size_t kSamples = 5;

  /// Sums over the busy periods of a lane, older steps weighted less.
  struct LaneSums {
    double count = 0;
    double bytes = 0;
    double seconds = 0;
    double reciprocal_bytes = 0;
    double seconds_per_byte = 0;
  };
  struct LaneFit {
    double bytes_per_second = 0;
    double latency = 0;
  };

  static LaneFit fit(const LaneSums& sums);

  int64_t steps_ = 0;
  std::deque<std::vector<double>> operations_;  ///< by step, the last kSamples
  std::deque<double> commits_;
  std::array<LaneSums, scheduler::kLaneCount> lanes_;
};

}  // namespace headrace::engine
