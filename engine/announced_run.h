#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/serial_worker.h"
#include "engine/schedule_run.h"

namespace headrace::engine {

/// One replay of a schedule whose operations are announced one by one, in the order of the trace,
/// while its transfers go on ahead on a thread of their own. Not thread-safe. The destructor stops
/// it and waits for what is in flight.
class AnnouncedRun {
 public:
  /// `driver` runs it, and nothing else meanwhile.
  AnnouncedRun(tiers::TieredStore& store, SerialWorker& driver,
               std::shared_ptr<const scheduler::Trace> trace,
               std::shared_ptr<const scheduler::Schedule> schedule);
  AnnouncedRun(const AnnouncedRun&) = delete;
  AnnouncedRun& operator=(const AnnouncedRun&) = delete;
  ~AnnouncedRun();

  /// Announces the next operation, waits until its objects are where it needs them, and returns
  /// their bytes, which are its own until the completion given to leave() has ended. Throws the
  /// run's error where it has failed: then the operation does not take place.
  std::vector<std::span<std::byte>> enter();
  void leave(const Completion& end);

  /// Operations that were not announced yet.
  size_t remaining() const { return trace_->operations.size() - announced_; }
  /// All operations have come: waits until the schedule has ended. Throws the run's error.
  RunReport finish();
  /// Starts nothing more, and waits for what is in flight. Throws the run's error.
  RunReport stop();

 private:
  void run();
  void entered(std::vector<std::span<std::byte>> bytes, Completion::Callback end);
  RunReport join();

  SerialWorker& driver_;
  std::shared_ptr<const scheduler::Trace> trace_;
  std::shared_ptr<const scheduler::Schedule> schedule_;
  ScheduleRun run_;
  size_t announced_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::vector<std::span<std::byte>>> bytes_;
  Completion::Callback end_;  ///< of the operation between enter() and leave()
  bool has_ended_ = false;
  std::exception_ptr error_;
  RunReport report_;
};

}  // namespace headrace::engine
