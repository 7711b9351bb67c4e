#pragma once

#include <liburing.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aio/backend.h"
#include "aio/uring_memory.h"

namespace headrace::aio {

/// An io_uring with its tables of files and memory. Made by any thread; from enable() on used by
/// the thread that called it, and destroyed by any, best by that one.
class UringRing {
 public:
  /// Room for `entries` requests in flight. IoError when the kernel or a sandbox refuses.
  UringRing(unsigned entries, SubmissionMode mode);
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;
  ~UringRing();

  /// Makes the calling thread the single issuer; no effect after the first call.
  void enable();

  /// Whether the file was registered; a refusal is explained once.
  bool register_file(int handle);
  void unregister_file(int handle);
  UringMemory& memory() { return *memory_; }

  /// Puts a request in the submission queue, where submit() finds it; may hand earlier ones to the
  /// kernel, so that it does not join large parts that are neighbours.
  void add(const PartRequest& part);
  void add_poll(int descriptor, uint64_t user_data);
  /// Hands the queue to the kernel; what it cannot take now goes with the next call.
  void submit();
  /// Submits and waits for at least one end.
  void wait();
  /// Submits and lets the kernel look for ends once, without waiting: how a ring with I/O polling
  /// makes progress.
  void poll_once();

  /// Calls take(cqe) for ends that are there until it returns false; the others are consumed.
  template <class Take>
  void take_ends(const Take& take) {
    unsigned taken = 0;
    unsigned head = 0;
    io_uring_cqe* end = nullptr;
    io_uring_for_each_cqe(&ring_, head, end) {
      if (!take(*end)) {
        break;
      }
      ++taken;
    }
    io_uring_cq_advance(&ring_, taken);
  }
  bool has_ends() const { return io_uring_cq_ready(&ring_) > 0; }

 private:
  io_uring_sqe& next_entry();
  void note_refusal(const char* what, int result);

  io_uring ring_{};
  SubmissionMode mode_;
  bool enabled_ = false;
  int refusals_in_a_row_ = 0;
  std::vector<bool> file_registered_;  ///< by descriptor; empty: no table
  std::optional<UringMemory> memory_;
};

}  // namespace headrace::aio
