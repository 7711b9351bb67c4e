#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aio/io.h"
#include "aio/probe_fio.h"
#include "aio/probe_identity.h"
#include "aio/probe_search.h"
#include "aio/probe_verdicts.h"

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
  bool compare_fio = false;  ///< takes about 20 s more, 8 s when quick
  Bytes memory{512 << 20};   ///< for buffers: settings with more in flight are left out
  BackendKind backend = BackendKind::io_uring;
  std::function<void(const ProbeProgress&)> progress;
  const std::atomic<bool>* cancelled =
      nullptr;  ///< set: InterruptedError soon, nothing left behind
};

/// One submission mode at the best point.
struct ModeTrial {
  SubmissionMode mode = SubmissionMode::interrupt;
  Rates rates;
  bool is_refused = false;  ///< the system does not do it
  std::string left_out;     ///< why it was not measured; empty: it was
};

struct ProbeReport {
  std::string path;
  StorageIdentity storage;
  int64_t unix_seconds = 0;  ///< when it began
  Bytes file_size;
  bool is_direct = false;  ///< false: rates include the page cache
  std::string engine;      ///< IoEngine::description()
  double seconds = 0;
  std::vector<ProbePoint> points;
  size_t best = 0;  ///< index of the point to use
  std::vector<ModeTrial> modes;
  SubmissionMode best_mode = SubmissionMode::interrupt;
  CacheFinding cache;
  ThinFinding thin;
  RateSeries writes;  ///< the fill and the writes that follow it at once
  CliffFinding cliff;
  double duplex = 0;  ///< duplex_ratio() of the best point
  std::optional<FioComparison> fio;
};

/// Measures what the storage below a folder gives: a temporary file without a name, so that nothing
/// is left behind however this ends, is allocated, read before it was written, filled, written
/// again, read twice; then block sizes, queue depths and submission modes are tried. InputError
/// when the folder cannot be used, CapacityError when it has not the room, IoError,
/// InterruptedError.
ProbeReport probe(const ProbeOptions& options);

struct RenderOptions {
  bool utf8 = false;  ///< block characters in the plot
};

/// Tables and a plot for people.
std::string render(const ProbeReport& report, const RenderOptions& options = {});
/// The `aio` block of a configuration, with DeepSpeed's keys, as JSON.
std::string aio_block(const ProbeReport& report);
}  // namespace headrace::aio
