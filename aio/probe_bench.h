#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "aio/io.h"

namespace headrace::aio {

/// What DeepSpeed's ds_io measures, through this engine: whole buffers to or from files.
struct IoBenchOptions {
  std::vector<std::string> folders;  ///< on the storage; one group of tasks each
  Bytes io_size;                     ///< of each task's buffer and file; a multiple of 4096
  bool read = false;                 ///< false: writes
  int tasks_per_folder = 1;          ///< at once, each with an engine and a file of its own
  Bytes block_size{1 << 20};
  int queue_depth = 32;     ///< blocks in flight per unit of parallelism
  int parallelism = 1;      ///< a ring needs no threads: this multiplies the depth
  bool in_batches = false;  ///< sends a queue's worth, waits for all of it, sends the next
  int loops = 3;            ///< counted
  int warmup_loops = 1;     ///< before them
  bool count_warmup = false;
  bool new_file_each_loop = false;
  bool validate = false;  ///< compares what was read, or reads back what was written
  Bytes memory_limit;     ///< for all buffers; CapacityError beyond it
  const std::atomic<bool>* cancelled = nullptr;  ///< set: InterruptedError after the transfer
};

/// Seconds of one counted loop: of the slowest task.
struct IoBenchLoop {
  double task = 0;        ///< from the first request to the last end
  double end_to_end = 0;  ///< with opening, allocating (writes) and closing the file
};

struct IoBenchReport {
  bool read = false;
  Bytes io_size;
  int64_t tasks = 0;
  bool validated = false;
  std::string engine;
  std::vector<IoBenchLoop> loops;
};

/// Files without a name, so nothing is left behind and no existing file is touched. InputError,
/// CapacityError (memory or space, with numbers), IoError (also for contents that differ: with the
/// offset), InterruptedError.
IoBenchReport run_io_bench(const IoBenchOptions& options);

/// ds_io's lines (latency: mean over the loops; speed: all tasks' bytes by it, GB = 2^30 bytes),
/// then one of ours with the spread.
std::string render(const IoBenchReport& report);

}  // namespace headrace::aio
