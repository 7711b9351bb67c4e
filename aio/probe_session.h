#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "aio/probe.h"
#include "aio/probe_load.h"
#include "aio/probe_storage.h"

namespace headrace::aio {

/// What all phases of a probe share: the time it has, the memory, the file. One thread uses it.
class ProbeSession {
 public:
  /// InputError, CapacityError, InterruptedError like probe().
  explicit ProbeSession(const ProbeOptions& options);

  const ProbeOptions& options() const { return options_; }
  HugeMemory& memory() { return memory_; }
  ScratchFile& scratch() { return scratch_; }
  double seconds() const { return seconds_; }  ///< for everything but the comparison with fio
  double elapsed() const;
  /// The phases begin now and have the rest of the time, but at least half of it: on a busy machine
  /// it can take seconds to get the memory.
  void start_phases() { phases_begin_ = elapsed(); }
  /// Seconds left until this share of the phases' time has passed; 0 when it has.
  double until(double share) const;
  void tell(const std::string& doing) const;
  void throw_if_cancelled() const;

  /// An engine over the probe's memory, with its file.
  struct Opened {
    std::unique_ptr<IoEngine> engine;
    FileId file{};
  };
  Opened open(Bytes block_size, int queue_depth,
              SubmissionMode mode = SubmissionMode::interrupt) const;
  /// A load over the first `file_size` bytes of the file, `queue_depth` blocks in flight.
  LoadPlan plan(const Opened& opened, LoadKind kind, Bytes file_size, Bytes block_size,
                int queue_depth, double seconds) const;

 private:
  using Clock = std::chrono::steady_clock;

  const ProbeOptions& options_;
  const double seconds_;
  const double total_seconds_;  ///< with the comparison
  const Clock::time_point begin_ = Clock::now();
  double phases_begin_ = 0;
  ScratchFile scratch_;
  HugeMemory memory_;
};

/// Seconds that the comparison with fio may take.
double fio_seconds(bool quick);

}  // namespace headrace::aio
