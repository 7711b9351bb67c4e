#pragma once

#include <array>
#include <chrono>
#include <optional>

#include "engine/run_report.h"
#include "tiers/tiered_store.h"

namespace headrace::engine {

/// Keeps the account of one run of a schedule: what each lane did when, and what the wall time is
/// charged to. Not thread-safe.
class RunAccount {
 public:
  using Clock = std::chrono::steady_clock;

  /// A transfer or operation.
  struct Work {
    uint32_t action = 0;
    scheduler::Lane lane = scheduler::Lane::compute;
    std::optional<uint32_t> operation;  ///< of the trace; empty: a transfer
    Bytes moved;
    Clock::time_point could_begin;  ///< what it waited for had ended
    Clock::time_point begin;
  };

  RunAccount(const tiers::TieredStore& store, size_t operations, bool record);

  /// The run begins now.
  Clock::time_point start();
  /// Slots of the tier were taken or given back.
  void note_level(Tier tier, Clock::time_point time);
  void launched(const Work& work);
  void ended(const Work& work, Clock::time_point end);
  /// Charges the time since the last call to a lane; none: "other".
  void charge(std::optional<scheduler::Lane> lane, Clock::time_point until);
  /// The run has ended now.
  RunReport finish();

  bool is_busy(scheduler::Lane lane) const { return lanes_[index(lane)].in_flight > 0; }
  /// A lane that has something in flight, those of transfers first; empty: none.
  std::optional<scheduler::Lane> busy_lane() const;

 private:
  struct LaneState {
    int in_flight = 0;
    Clock::time_point since{};         ///< busy since, of a lane of the drive
    Clock::time_point period_since{};  ///< the same, counted from when the first could begin
    Clock::time_point last_end{};
    int64_t period_bytes = 0;
    double shared_before = 0;  ///< of RunAccount::drive_shared_, when it became busy
  };

  static size_t index(scheduler::Lane lane) { return static_cast<size_t>(lane); }
  double since_start(Clock::time_point time) const;
  /// Before what the drive has in flight changes.
  void note_drive(Clock::time_point now);

  const tiers::TieredStore& store_;
  std::array<LaneState, scheduler::kLaneCount> lanes_;
  Clock::time_point start_;
  Clock::time_point accounted_until_;
  Clock::time_point drive_noted_{};
  double drive_shared_ = 0;  ///< seconds until then in which both directions of the drive were busy
  RunReport report_;
};

}  // namespace headrace::engine
