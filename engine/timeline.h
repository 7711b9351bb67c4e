#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/executor.h"

namespace headrace::engine {

/// What happened when in one optimizer step, with names. Times in seconds from `begin`.
struct StepTimeline {
  /// A transfer or an operation. On nvme lanes it takes from the request to the end of its check,
  /// and others are in flight beside it; on the other lanes it begins when the one before has
  /// ended.
  struct Event {
    std::string name;  ///< of the object or operation
    scheduler::Lane lane = scheduler::Lane::compute;
    Bytes bytes;  ///< moved; 0 for operations
    double begin = 0;
    double end = 0;
  };

  int64_t step = 0;
  std::chrono::steady_clock::time_point begin;
  double seconds = 0;
  std::vector<Event> events;       ///< in the order of their ends
  std::vector<Charge> charges;     ///< from 0 to `seconds` without a gap
  std::vector<ArenaLevel> levels;  ///< by time

  /// The sums of `charges`: the step's stall breakdown.
  TimeSplit split() const;
};

/// Puts the timeline of a step together while it runs. Not thread-safe.
class TimelineRecorder {
 public:
  TimelineRecorder(int64_t step, std::chrono::steady_clock::time_point begin);

  /// `record` is of a run of `schedule` that began after all that was added before.
  void add_run(const RunRecord& record, const scheduler::Trace& trace,
               const scheduler::Schedule& schedule,
               const std::vector<scheduler::ObjectFacts>& objects);
  /// The commit of the step's values, charged to nvme_write.
  void add_commit(std::chrono::steady_clock::time_point begin,
                  std::chrono::steady_clock::time_point end);
  /// What nothing was charged to is "other".
  StepTimeline finish(double seconds) &&;

 private:
  void charge(std::optional<scheduler::Lane> lane, double begin, double end);

  StepTimeline timeline_;
};

}  // namespace headrace::engine
