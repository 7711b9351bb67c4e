#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <queue>
#include <span>
#include <vector>

#include "base/completion.h"
#include "engine/run_account.h"
#include "scheduler/schedule.h"
#include "tiers/tiered_store.h"

namespace headrace::engine {

/// What the thread of a run is told by others: that something in flight has ended, that an
/// operation is announced, that the run has to stop.
class RunEvents {
 public:
  enum class Kind : uint8_t { ended, announced, stop };
  struct Event {
    Kind kind = Kind::ended;
    uint32_t action = 0;  ///< that has ended
    std::chrono::steady_clock::time_point time;
    std::exception_ptr error;
  };

  void push(Kind kind, uint32_t action = 0, std::exception_ptr error = nullptr);
  /// Blocks until there are some.
  std::vector<Event> wait();
  /// Something has failed, whether wait() has returned it or not.
  bool has_failure() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
  bool has_failure_ = false;
};

/// Whether operations start on their own.
enum class OperationStart : uint8_t {
  /// As soon as what they wait for has ended. In-order operations of the compute lane are posted to
  /// one stream and wait neither for each other nor for what they use to be copied to the device: a
  /// few are posted while earlier ones and those copies run, so that the device has its next work
  /// at once.
  when_ready,
  when_announced,  ///< not before their announcement; they are announced in the order of the trace
};

/// What an operation works on, pinned until it has ended.
struct PinnedUses {
  std::vector<std::span<std::byte>> bytes;  ///< in the order of Operation::uses
  std::vector<device::EventRef> behind;     ///< its stream waits for these first
};

/// One replay of a schedule: starts every action as soon as its dependencies have ended (of
/// operations: OperationStart); in_order operations of one lane in the order of the trace. On an
/// error nothing more is started.
///
/// run() blocks its thread, which does everything but the work of operations. announce() and stop()
/// may come from any thread.
class ScheduleRun {
 public:
  /// Starts the work of an operation and returns; called by the thread of the run. `end` is to be
  /// called once, from any thread.
  using Start = std::function<void(uint32_t operation, PinnedUses uses, Completion::Callback end)>;

  /// Trace and schedule must outlive this.
  ScheduleRun(tiers::TieredStore& store, const scheduler::Trace& trace,
              const scheduler::Schedule& schedule, Start start, OperationStart when, bool record);

  /// Returns when all actions have ended, or after a stop or an error when nothing is in flight any
  /// more. Throws the first error.
  RunReport run();
  /// The next operation of the trace may start.
  void announce() { events_.push(RunEvents::Kind::announced); }
  /// Nothing more is started. What has been done then is a valid state: no value is lost.
  void stop() { events_.push(RunEvents::Kind::stop); }

 private:
  using Clock = RunAccount::Clock;
  enum class State : uint8_t { waiting, in_flight, done };

  bool is_over() const;
  void take(const RunEvents::Event& event);
  void take_announcement(Clock::time_point time);
  void start_ready();
  void start(uint32_t index);
  void start_transfer(uint32_t index);
  void start_operation(uint32_t index);
  void start_in_order(uint32_t ready);
  void release_dependency(uint32_t index);
  void launch(uint32_t index, Clock::time_point begin);
  void finish(const RunEvents::Event& end);
  void finish_in_stream();
  void note_end(const RunEvents::Event& end);
  void complete(uint32_t index, Clock::time_point time);
  void release_behind(uint32_t index);
  void note_end_to_behind(uint32_t index);
  aio::IoClass io_class(uint32_t index);
  uint32_t first_open_operation();
  std::optional<scheduler::Lane> current_cause();
  scheduler::Lane lane_of(const scheduler::Action& action) const;
  bool is_in_order(const scheduler::Action& action) const;
  bool is_streamed(uint32_t index) const;
  bool is_posted_ahead(uint32_t index) const;
  bool is_behind(uint32_t index, uint32_t dependent) const;
  bool brings(uint32_t copy, uint32_t operation) const;
  bool computes() const;
  RunAccount::Work work_of(uint32_t index) const;

  tiers::TieredStore& store_;
  const scheduler::Trace& trace_;
  const scheduler::Schedule& schedule_;
  Start start_;
  OperationStart when_;
  RunEvents events_;
  RunAccount account_;
  std::vector<uint32_t> open_dependencies_;
  std::vector<std::vector<uint32_t>> dependents_;
  std::vector<State> state_;
  std::vector<Clock::time_point> begin_;
  std::vector<Clock::time_point> could_begin_;  // end of the last dependency
  std::vector<std::vector<tiers::Lease>> leases_;
  std::vector<bool> may_start_;  // operations whose dependencies have ended
  std::deque<uint32_t> lane_operations_[scheduler::kLaneCount];  // in_order, not started
  std::vector<uint32_t> action_of_;                              // by operation
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready_;
  std::vector<uint32_t> open_before_;  ///< by action: what it is posted behind, until that ends
  std::deque<uint32_t> posted_;        ///< operations in flight that is_streamed(), in order
  std::map<uint32_t, RunEvents::Event> stream_ends_;  ///< that are not noted yet
  Clock::time_point stream_end_{};                    ///< the last that is
  size_t in_flight_ = 0;
  size_t done_ = 0;
  size_t announced_ = 0;  // operations
  size_t started_ = 0;    // operations
  bool is_stopped_ = false;
  uint32_t open_operation_ = 0;
  std::exception_ptr error_;
};

}  // namespace headrace::engine
