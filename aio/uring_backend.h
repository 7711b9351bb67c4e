#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "aio/posix_backend.h"
#include "aio/uring_ring.h"

namespace headrace::aio {

/// One io_uring in one submission mode, and an eventfd that interrupts its wait. Files and memory
/// are registered where the kernel and the memlock limit allow; every refusal is explained once. A
/// ring with I/O polling is replaced by one with interrupts when a device refuses a transfer; the
/// refused parts are sent again.
class UringBackend : public PosixBackend {
 public:
  /// Room for `queue_depth` parts in flight. IoError when the kernel or a sandbox refuses io_uring;
  /// a refused `mode` falls back to interrupts with one log line.
  static std::unique_ptr<UringBackend> create(int queue_depth,
                                              SubmissionMode mode = SubmissionMode::interrupt);
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
  explicit UringBackend(int queue_depth);
  void open_ring(SubmissionMode mode);
  void note_registered();

  size_t reap_waiting(std::span<PartCompletion> ready);
  void arm_wake();

  // With I/O polling.
  size_t reap_polled(std::span<PartCompletion> ready);
  size_t take_polled(std::span<PartCompletion> ready);
  void sleep_until_woken();
  void send_polled(std::span<const PartRequest> parts);
  void fall_back();

  void clear_wake();

  int queue_depth_;
  std::unique_ptr<UringRing> ring_;
  int event_fd_ = -1;
  bool wake_armed_ = false;
  std::vector<int> files_;                    ///< descriptors to register
  std::vector<std::span<std::byte>> memory_;  ///< to register

  // With I/O polling.
  std::vector<PartRequest> polled_;   ///< by token: what is in flight
  int polled_count_ = 0;              ///< of them
  std::vector<PartRequest> refused_;  ///< go to the next ring
  std::atomic<bool> woken_{false};

  // Read by features() on any thread.
  std::atomic<SubmissionMode> mode_{SubmissionMode::interrupt};
  std::atomic<bool> has_files_{false};
  std::atomic<int64_t> bytes_offered_{0};
  std::atomic<int64_t> bytes_registered_{0};
};

}  // namespace headrace::aio
