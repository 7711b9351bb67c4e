#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/completion.h"
#include "base/units.h"

namespace headrace::aio {

enum class IoOperation : uint8_t { read, write };
inline size_t index_of(IoOperation operation) {
  return static_cast<size_t>(operation);
}

/// Request classes, most urgent first. Reads and writes have separate budgets of the queue depth.
enum class IoClass : uint8_t { demand, prefetch, write_back };

/// Dense index of an open file of one IoEngine.
enum class FileId : uint32_t {};

/// One transfer as a value. Files opened with direct I/O need offset, length and address aligned
/// to IoEngine::alignment().
struct IoRequest {
  IoOperation operation = IoOperation::read;
  IoClass io_class = IoClass::demand;
  FileId file{};
  int64_t offset = 0;         ///< bytes from the start of the file
  std::byte* data = nullptr;  ///< must stay valid until the completion
  Bytes length;
};

enum class BackendKind : uint8_t { io_uring, thread_pool, simulated };

/// How the kernel learns of requests and reports their ends, where the backend is io_uring. A mode
/// that the kernel, the user's rights or the device refuse falls back to `interrupt` with one log
/// line. `headrace probe` measures which one is best on a path.
enum class SubmissionMode : uint8_t {
  interrupt,  ///< system calls and interrupts: cheapest in CPU time
  sq_poll,    ///< a kernel thread polls the submission queue: costs a core while busy
  io_poll,    ///< the engine polls the device for ends: needs a device with poll queues
};

/// "interrupt", "sq_poll", "io_poll".
const char* to_string(SubmissionMode mode);

/// Rates and latency that an engine keeps below its drive's own, all paths together.
struct IoLimits {
  double read_bytes_per_second = 0;     ///< 0: no limit
  double write_bytes_per_second = 0;    ///< 0: no limit
  double both_bytes_per_second = 0;     ///< reads and writes together; 0: no limit
  std::chrono::nanoseconds latency{0};  ///< added to every transfer of one block

  bool any() const {
    return read_bytes_per_second > 0 || write_bytes_per_second > 0 || both_bytes_per_second > 0 ||
           latency.count() > 0;
  }
};

struct IoEngineOptions {
  BackendKind backend = BackendKind::io_uring;  ///< falls back to thread_pool with one log line why
  Bytes block_size{1 << 20};                    ///< a request is cut into parts of this size
  int queue_depth = 64;                         ///< parts in flight, reads and writes together
  /// The engine looks for the smallest depth that reaches the best rate while it runs: from 2 to
  /// 16 * queue_depth, beginning at queue_depth.
  bool adaptive_depth = false;
  bool direct = true;  ///< O_DIRECT; falls back to buffered with one log line where refused
  int threads = 8;     ///< of the thread pool backend
  SubmissionMode submission = SubmissionMode::interrupt;
  IoLimits limits;
};

struct IoStatistics {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t requests = 0;
  double read_busy_seconds = 0;   ///< time with at least one read in flight
  double write_busy_seconds = 0;  ///< time with at least one write in flight
  int reads_in_flight = 0;        ///< parts, now
  int writes_in_flight = 0;
};

/// Asynchronous file I/O. Owns its files, ring and threads; all functions are thread-safe. A
/// completion ends when every part of its request was transferred in full; a short or failed
/// part fails it with an IoError that names path, offset, expected and actual bytes. Completions
/// are ended on the engine's own thread: their callbacks must be quick. The destructor waits for
/// what is in flight.
class IoEngine {
 public:
  static std::unique_ptr<IoEngine> create(const IoEngineOptions& options);
  virtual ~IoEngine() = default;

  /// Opens (and creates, mode 0600) a file for reading and writing.
  virtual FileId open(const std::string& path, bool create) = 0;
  /// Makes the file `size` bytes long with its blocks allocated; IoError (ENOSPC) when full.
  virtual void allocate(FileId file, Bytes size) = 0;
  virtual void close(FileId file) = 0;
  /// fdatasync.
  virtual void sync(FileId file) = 0;
  /// Registers memory for cheaper transfers; a hint: refusal is logged once and costs only time.
  /// The memory must stay mapped until the engine is destroyed.
  virtual void register_memory(std::span<std::byte> memory) = 0;

  virtual Completion submit(const IoRequest& request) = 0;

  /// Multiple for offsets, lengths and addresses (bytes); 4096 with direct I/O, else 1.
  virtual Bytes alignment() const = 0;
  /// What is really used: "io_uring, O_DIRECT, interrupt, registered buffers and files".
  virtual std::string description() const = 0;
  virtual IoStatistics statistics() const = 0;
};

}  // namespace headrace::aio
