#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/io.h"

namespace headrace::aio {

/// How far a probe is, for the user's eyes.
struct ProbeProgress {
  double done = 0;    ///< 0 to 1
  std::string doing;  ///< "writing the test file", "1.00 MiB x 128: read"
};

struct ProbeOptions {
  std::string path;          ///< a folder on the storage to measure
  Bytes file_size{1 << 30};  ///< of the temporary file; less on storage too slow to write it
  double seconds = 0;        ///< 0: 30, or 8 when quick
  bool quick = false;        ///< few settings
  Bytes memory{512 << 20};   ///< for buffers: settings with more in flight are left out
  BackendKind backend = BackendKind::io_uring;
  std::function<void(const ProbeProgress&)> progress;
  const std::atomic<bool>* cancelled =
      nullptr;  ///< set: InterruptedError soon, nothing left behind
};

struct Latency {
  double p50_ms = 0;
  double p99_ms = 0;
};

/// One block size and queue depth. Rates in bytes per second; mixed is the sum of as many reads as
/// writes at once.
struct ProbePoint {
  Bytes block_size;
  int queue_depth = 0;
  double read_rate = 0;
  double write_rate = 0;
  double mixed_rate = 0;
  Latency read_latency{};
  Latency write_latency{};
  bool is_measured = false;
  std::string left_out{};  ///< why it was not measured
};

struct ProbeReport {
  std::string path;
  std::string file_system;  ///< "ext4"; a hexadecimal number when unknown
  std::string device;       ///< "nvme0n1 (vendor model)"; empty when there is none
  Bytes free_space;
  Bytes file_size;
  bool is_direct = false;  ///< false: rates include the page cache
  std::string engine;      ///< IoEngine::description()
  double seconds = 0;
  std::vector<ProbePoint> points;
  size_t best = 0;  ///< index of the point to use
};

/// Measures what the storage below a folder gives: a temporary file, unlinked at once so that
/// nothing is left behind however this ends, is written once in full, then read, written and both
/// over block sizes and queue depths. InputError when the folder cannot be used, CapacityError when
/// it has not the room, IoError, InterruptedError.
ProbeReport probe(const ProbeOptions& options);

/// The best point: among those within 5 % of the highest score (mixed rate plus the mean of read
/// and write rate), the one with the fewest bytes in flight. CapacityError when none was measured.
size_t best_point(const std::vector<ProbePoint>& points);

/// A table with bars for people.
std::string render(const ProbeReport& report);
/// The `aio` block of a configuration, with DeepSpeed's keys, as JSON.
std::string aio_block(const ProbeReport& report);

}  // namespace headrace::aio
