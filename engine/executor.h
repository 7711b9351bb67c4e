#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/completion.h"
#include "base/serial_worker.h"
#include "device/device.h"
#include "engine/run_report.h"
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

  /// Does the work of an operation on its lane, as run() does: in the calling thread for lane
  /// compute, whose stream waits for `behind` first, on the worker's for cpu_optimizer. Ends with
  /// the work, failed with what it throws.
  Completion post(scheduler::Lane lane, std::function<void(UseBytes)> work,
                  std::vector<std::span<std::byte>> bytes,
                  const std::vector<device::EventRef>& behind = {});

  tiers::TieredStore& store() { return store_; }

 private:
  void wait_for_posted_work();

  tiers::TieredStore& store_;
  device::Stream& compute_;
  SerialWorker cpu_worker_;
};

}  // namespace headrace::engine
