#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "aio/backend.h"
#include "aio/drive_lanes.h"

namespace headrace::aio {

/// Wakes a backend at a given time, from a thread of its own.
class WakeTimer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WakeTimer(Backend& backend);
  WakeTimer(const WakeTimer&) = delete;
  WakeTimer& operator=(const WakeTimer&) = delete;
  ~WakeTimer();

  /// Replaces the time set before.
  void set(Clock::time_point when);

 private:
  void run();

  Backend& backend_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point when_ = Clock::time_point::max();
  bool stopping_ = false;
  std::thread thread_;
};

/// Any backend as a drive of known rates and latency, slower than it is (DriveLanes): a part ends
/// not before its direction has served it and the latency has passed. Parts go to the backend up to
/// kLead ahead of their turn, so that its own swings do not show and what shares the drive sees an
/// even load. Files pass through; so do results. Owns the backend and one thread, which sleeps but
/// for one wake-up per part at most.
class LimitedBackend : public Backend {
 public:
  LimitedBackend(std::unique_ptr<Backend> backend, const IoLimits& limits);

  static constexpr std::chrono::milliseconds kLead{20};
  static constexpr double kLeadSeconds = std::chrono::duration<double>(kLead).count();

  int open(const std::string& path, bool create, bool direct) override {
    return backend_->open(path, create, direct);
  }
  int allocate(int handle, int64_t size) override { return backend_->allocate(handle, size); }
  int set_size(int handle, int64_t size) override { return backend_->set_size(handle, size); }
  int sync(int handle) override { return backend_->sync(handle); }
  int close(int handle) override { return backend_->close(handle); }

  void register_file(int handle) override { backend_->register_file(handle); }
  void unregister_file(int handle) override { backend_->unregister_file(handle); }
  void register_memory(std::span<std::byte> memory) override { backend_->register_memory(memory); }

  void submit(std::span<const PartRequest> parts) override;
  size_t reap(std::span<PartCompletion> ready) override;
  void wake() override { backend_->wake(); }
  std::string name() const override { return backend_->name(); }
  std::string features() const override;

 private:
  using Clock = std::chrono::steady_clock;
  /// Of a part, until both are known.
  struct Progress {
    std::optional<PartCompletion> completion;
    std::optional<Clock::time_point> served;
  };
  struct Ended {
    PartCompletion completion;
    Clock::time_point due;

    bool operator>(const Ended& other) const { return due > other.due; }
  };

  void send_due(Clock::time_point now);
  void note_served(Clock::time_point now);
  void end_if_complete(uint32_t token);
  /// Seconds until the first part that waits has its turn; negative: it has had it.
  double seconds_to_turn(IoOperation operation) const;
  size_t take_due(std::span<PartCompletion> ready, Clock::time_point now);
  Clock::time_point next_event(Clock::time_point now) const;

  std::unique_ptr<Backend> backend_;
  IoLimits limits_;
  DriveLanes lanes_;
  std::array<std::deque<PartRequest>, 2> waiting_;  ///< by operation; in order of their turn
  std::array<double, 2> bytes_waiting_{};           ///< of them
  std::vector<Progress> progress_;                  ///< by token
  std::priority_queue<Ended, std::vector<Ended>, std::greater<>> ended_;  ///< earliest on top
  std::vector<PartRequest> batch_;
  std::vector<PartCompletion> reaped_;
  WakeTimer timer_;  ///< last: it stops before the backend goes
};

}  // namespace headrace::aio
