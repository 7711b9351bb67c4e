#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "aio/io.h"

namespace headrace::aio {

/// One part of a request as a value: a single transfer that the kernel can do in one call.
struct PartRequest {
  uint32_t token = 0;  ///< comes back in the completion
  IoOperation operation = IoOperation::read;
  int handle = -1;  ///< from Backend::open
  int64_t offset = 0;
  std::byte* data = nullptr;
  uint32_t length = 0;  ///< bytes, at most kPartBytesMax
};

/// The end of one part: what the kernel said and what was asked.
struct PartCompletion {
  uint32_t token = 0;
  int32_t result = 0;     ///< bytes transferred, or -errno
  uint32_t expected = 0;  ///< bytes asked for
};

inline constexpr int64_t kPartBytesMax = int64_t{1} << 30;
inline constexpr int64_t kDirectAlignment = 4096;

/// What carries transfers out: a ring, threads, a simulated disk. File functions may be called
/// from any thread and return a handle or 0, or -errno. Functions marked [engine] are called by
/// one thread only, never while reap() runs; wake(), name() and features() by any.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual int open(const std::string& path, bool create, bool direct) = 0;
  virtual int allocate(int handle, int64_t size) = 0;  ///< length and blocks
  virtual int set_size(int handle, int64_t size) = 0;  ///< length only
  virtual int sync(int handle) = 0;
  virtual int close(int handle) = 0;

  virtual void register_file(int /*handle*/) {}                     ///< [engine] a hint
  virtual void unregister_file(int /*handle*/) {}                   ///< [engine] before close
  virtual void register_memory(std::span<std::byte> /*memory*/) {}  ///< [engine] a hint

  /// [engine] Starts all parts; the caller keeps at most its queue depth in flight.
  virtual void submit(std::span<const PartRequest> parts) = 0;
  /// [engine] Blocks until parts have ended or wake() was called; writes up to ready.size() ends.
  virtual size_t reap(std::span<PartCompletion> ready) = 0;
  /// Makes the current or the next reap() return.
  virtual void wake() = 0;

  virtual std::string name() const = 0;      ///< "io_uring"
  virtual std::string features() const = 0;  ///< "registered files and buffers", may be empty
};

}  // namespace headrace::aio
