#pragma once

#include <liburing.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "aio/posix_backend.h"

namespace headrace::aio {

/// One io_uring. Owns the ring and an eventfd that interrupts its wait. Files and memory are
/// registered where the kernel and the memlock limit allow; every refusal is explained once.
class UringBackend : public PosixBackend {
 public:
  /// Room for `queue_depth` parts in flight. IoError when the kernel or a sandbox refuses.
  static std::unique_ptr<UringBackend> create(int queue_depth);
  UringBackend(const UringBackend&) = delete;
  UringBackend& operator=(const UringBackend&) = delete;
  ~UringBackend() override;

  void register_file(int handle) override;
  void unregister_file(int handle) override;
  void register_memory(std::span<std::byte> memory) override;
  void submit(std::span<const PartRequest> parts) override;
  size_t reap(std::span<PartCompletion> ready) override;
  void wake() override;
  std::string name() const override { return "io_uring"; }
  std::string features() const override;

 private:
  /// Memory registered as buffer `index` of the ring.
  struct Buffer {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    int index = 0;
  };

  UringBackend() = default;
  void make_tables();
  void enable();
  void arm_wake();
  void enter();
  void take_wake(int32_t result);
  io_uring_sqe& next_entry();
  /// Registers memory of at most kBufferBytesMax as one buffer; false when refused.
  bool register_chunk(std::span<std::byte> chunk);
  const Buffer* buffer_of(const PartRequest& part) const;
  void prepare(io_uring_sqe& entry, const PartRequest& part) const;

  io_uring ring_{};
  bool ring_open_ = false;
  bool enabled_ = false;
  bool wake_armed_ = false;
  int event_fd_ = -1;
  int refusals_in_a_row_ = 0;
  std::vector<bool> file_registered_;  ///< by descriptor; empty: no table
  bool buffer_table_ = false;
  std::vector<Buffer> buffers_;  ///< sorted by address, without overlap
  std::atomic<bool> has_files_{false};
  std::atomic<bool> has_buffers_{false};
};

}  // namespace headrace::aio
