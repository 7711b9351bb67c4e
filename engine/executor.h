#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/serial_worker.h"
#include "device/device.h"
#include "scheduler/schedule.h"
#include "tiers/tiered_store.h"

namespace headrace::engine {

/// What an operation sees: the bytes of its uses, in the order of Operation::uses.
using UseBytes = std::span<const std::span<std::byte>>;

/// One use that holds fp32 values.
inline float* floats(std::span<std::byte> use) {
  return reinterpret_cast<float*>(use.data());
}

/// Work of one operation of the trace. For lane compute it posts to the compute stream and returns;
/// for lane cpu_optimizer it runs on the executor's worker thread.
using OperationBody = std::function<void(uint32_t operation, UseBytes uses)>;

/// Where the wall time of a step went; the parts add up to `total`.
struct TimeSplit {
  double compute = 0;
  double cpu_optimizer = 0;  ///< optimizer or gradient work on the CPU with nothing computing
  double nvme_read = 0;      ///< waiting for
  double nvme_write = 0;
  double host_to_device = 0;
  double device_to_host = 0;
  double other = 0;
  double total = 0;

  TimeSplit& operator+=(const TimeSplit& part);
};

/// The part of the time that a lane is charged with; none: "other".
double& part_of(TimeSplit& split, std::optional<scheduler::Lane> lane);

/// Transfers of one lane that followed each other or overlapped.
struct BusyPeriod {
  int64_t bytes = 0;
  double seconds = 0;  ///< from when the first could begin to the last end
  double shared = 0;   ///< of these, on the drive: while the other direction had transfers, too
};

/// Wall time charged to a lane; none: "other".
struct Charge {
  std::optional<scheduler::Lane> lane;
  double begin = 0;
  double end = 0;
};

/// Bytes that slots take in an arena from `time` on.
struct ArenaLevel {
  Tier tier = Tier::host;
  Bytes used;
  double time = 0;
};

/// What happened when in one run of a schedule; times in seconds from `start`.
struct RunRecord {
  std::chrono::steady_clock::time_point start;
  /// Transfers and operations in the order of their ends. On nvme lanes they overlap.
  std::vector<scheduler::Span> spans;
  std::vector<Charge> charges;  ///< from 0 to the end without a gap; the parts of RunReport::split
  std::vector<ArenaLevel> levels;  ///< of every tier at first, then at each change
};

/// What one run of a schedule did.
struct RunReport {
  TimeSplit split;
  /// Seconds in which each lane had work in flight, by scheduler::Lane.
  std::array<double, scheduler::kLaneCount> busy{};
  /// Seconds that each operation of the trace took from when it could begin: when what it waits for
  /// and the operation before it on its lane had ended.
  std::vector<double> operation_seconds;
  /// When each operation of the trace ended, in seconds from the start of the run.
  std::vector<double> operation_ends;
  /// The times in which a lane had transfers in flight, without a gap; by scheduler::Lane.
  std::array<std::vector<BusyPeriod>, scheduler::kLaneCount> busy_periods;
  std::optional<RunRecord> record;  ///< where asked for
};

/// Replays schedules: starts every action as soon as its dependencies have ended, on the lane it
/// belongs to; in_order operations of one lane in the order of the trace. Owns the CPU worker; the
/// store, streams and device are the caller's. Not thread-safe. On an error nothing more is
/// started, what is in flight is waited for, and the first error is rethrown.
class Executor {
 public:
  Executor(tiers::TieredStore& store, device::Stream& compute);

  /// Runs `call` on the thread of CPU operations and waits for it; throws what it throws.
  void on_cpu_worker(const std::function<void()>& call);

  RunReport run(const scheduler::Trace& trace, const scheduler::Schedule& schedule,
                const OperationBody& body, bool record = false);

 private:
  class Run;

  tiers::TieredStore& store_;
  device::Stream& compute_;
  SerialWorker cpu_worker_;
};

}  // namespace headrace::engine
