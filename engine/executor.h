#pragma once

#include <array>
#include <functional>
#include <memory>
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

/// Transfers of one lane that followed each other or overlapped.
struct BusyPeriod {
  int64_t bytes = 0;
  double seconds = 0;  ///< from when the first could begin to the last end
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
  std::vector<scheduler::Span> spans;  ///< filled where asked for
};

/// Replays schedules: starts every action as soon as its dependencies have ended, on the lane it
/// belongs to; in_order operations of one lane in the order of the trace. Owns the CPU worker; the
/// store, streams and device are the caller's. Not thread-safe. On an error nothing more is
/// started, what is in flight is waited for, and the first error is rethrown.
class Executor {
 public:
  Executor(tiers::TieredStore& store, device::Stream& compute, bool record_spans = false);

  /// Runs `call` on the thread of CPU operations and waits for it; throws what it throws.
  void on_cpu_worker(const std::function<void()>& call);

  RunReport run(const scheduler::Trace& trace, const scheduler::Schedule& schedule,
                const OperationBody& body);

 private:
  class Run;

  tiers::TieredStore& store_;
  device::Stream& compute_;
  bool record_spans_;
  SerialWorker cpu_worker_;
};

}  // namespace headrace::engine
