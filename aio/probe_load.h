#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "aio/io.h"
#include "aio/probe_verdicts.h"

namespace headrace::aio {

enum class LoadKind : uint8_t { read, write, mixed };

/// A closed loop: `slots` requests of one block each are kept in flight, one after the other over
/// the file (mixed: every other one writes, to the second half). One pass stops at the end of the
/// file.
struct LoadPlan {
  LoadKind kind = LoadKind::read;
  FileId file{};
  Bytes file_size;
  Bytes block_size;
  int slots = 1;
  /// At least slots * block_size bytes. All of it is used in turn, as the arena of a run is: some
  /// virtual disks are half as fast again where few buffers stay in the processor's caches.
  std::span<std::byte> memory;
  double seconds = 1;       ///< stops after so long
  double warm_seconds = 0;  ///< transfers that end before this are not counted
  bool one_pass = false;
  double sample_seconds = 0;  ///< above 0: bytes per interval of this length are noted
  const std::atomic<bool>* cancelled = nullptr;
};

struct LoadResult {
  double seconds = 0;  ///< of the counted stretch
  int64_t bytes = 0;   ///< that ended in it
  int64_t blocks_sent = 0;
  std::vector<double> read_ms;  ///< from submission to end, of the counted transfers
  std::vector<double> write_ms;
  RateSeries samples;  ///< over the whole run, complete intervals only
  double rate() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

/// Runs a plan and waits for all it has sent, also on errors. Throws the first failed transfer's
/// error; InterruptedError when cancelled.
LoadResult run_load(IoEngine& engine, const LoadPlan& plan);

}  // namespace headrace::aio
