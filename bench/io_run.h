#pragma once

#include <string>

#include "aio/probe_fio.h"
#include "base/units.h"

namespace headrace::bench {

/// One pass over `size` bytes of a file. Mixed: half of the bytes are read from the first half of
/// the file while the other half is written to the second.
struct IoJob {
  std::string path;
  aio::LoadKind mode = aio::LoadKind::read;
  Bytes size;
  Bytes object;      ///< bytes per request of ours; fio knows only blocks
  std::string kind;  ///< ours: "io_uring" or "threads"; fio's: its ioengine
  Bytes block;
  int depth = 1;
};

struct IoResult {
  double gb_per_second = 0;       ///< 10^9 bytes, reads and writes together
  double cpu_seconds_per_gb = 0;  ///< user and system time of the process
};

/// Throws InterruptedError once SIGINT or SIGTERM has come; install_stop_signals() arms it.
void check_stopped();
void install_stop_signals();

/// A pass of fio with direct I/O on huge-page buffers, registered buffers and files. IoError when
/// fio is not there or fails.
IoResult run_fio(const IoJob& job);

}  // namespace headrace::bench
