#include "aio/uring_ring.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "aio/uring_setup.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::aio {

namespace {

constexpr unsigned kFilesMax = 1024;  ///< descriptors from here on are used unregistered
/// The kernel holds more requests of one call than this back and joins neighbours, of up to several
/// MiB each ("plugging"). Joined ones end together, so the next ones start, and are joined,
/// together again: the device sees a third of the depth, and writes reached 0.92 of the rate.
constexpr unsigned kApartMax = 2;
constexpr int64_t kLargePart = 512 << 10;  ///< smaller ones gain more from fewer calls
constexpr int kRefusalsMax = 10000;        ///< of io_uring_enter in a row, 0.1 ms apart

[[noreturn]] void fail(const char* what, int result) {
  throw IoError(what, IoError::Where{.path = "io_uring", .error_number = -result});
}

}  // namespace

UringRing::UringRing(unsigned entries, SubmissionMode mode) : mode_(mode) {
  if (const int result = open_best_ring(entries, mode, ring_); result < 0) {
    fail("cannot set up a ring", result);
  }
  if (const int result = check_operations(ring_); result < 0) {
    io_uring_queue_exit(&ring_);
    fail("the ring lacks read, write or poll", result);
  }
  if (const int result = io_uring_register_files_sparse(&ring_, kFilesMax); result >= 0) {
    file_registered_.assign(kFilesMax, false);
  } else {
    log_message_once(LogLevel::info, "io_uring files",
                     fmt::format("io_uring: no table of registered files ({}); costs a file "
                                 "look-up per transfer",
                                 errno_text(-result)));
  }
  memory_.emplace(ring_);
}

UringRing::~UringRing() {
  // The kernel takes a ring apart in the background; the memory is unlocked at once this way, so
  // that a next ring finds room below the memlock limit. Refused where another thread enabled the
  // ring or nothing is registered: then it just takes longer.
  static_cast<void>(io_uring_unregister_buffers(&ring_));
  io_uring_queue_exit(&ring_);
}

void UringRing::enable() {
  if (enabled_) {
    return;
  }
  if (const int result = enable_ring(ring_); result < 0) {
    fail("cannot enable the ring", result);
  }
  enabled_ = true;
}

bool UringRing::register_file(int handle) {
  const auto slot = static_cast<size_t>(handle);
  if (slot >= file_registered_.size()) {
    return false;
  }
  const int result =
      io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &handle, 1);
  file_registered_[slot] = result == 1;
  if (result != 1) {
    log_message_once(LogLevel::info, "io_uring file",
                     fmt::format("io_uring: a file could not be registered ({}); costs a file "
                                 "look-up per transfer",
                                 errno_text(-result)));
  }
  return result == 1;
}

void UringRing::unregister_file(int handle) {
  const auto slot = static_cast<size_t>(handle);
  if (slot >= file_registered_.size() || !file_registered_[slot]) {
    return;
  }
  const int empty = -1;
  const int result = io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &empty, 1);
  if (result < 0) {  // the table keeps the file until the slot is used again; nothing refers to it
    log_debug("io_uring: cannot unregister a file ({})", errno_text(-result));
  }
  file_registered_[slot] = false;
}

io_uring_sqe& UringRing::next_entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  if (entry == nullptr && mode_ == SubmissionMode::sq_poll) {
    // The kernel's thread gives entries back a little later than it ends their requests.
    submit();
    if (const int result = io_uring_sqring_wait(&ring_); result < 0) {
      fail("cannot wait for room in the submission queue", result);
    }
    entry = io_uring_get_sqe(&ring_);
  }
  HR_CHECK(entry != nullptr, "more than {} parts in flight", ring_.sq.ring_entries);
  return *entry;
}

void UringRing::add(const PartRequest& part) {
  const bool polled_by_kernel = mode_ == SubmissionMode::sq_poll;  // which takes any batch
  if (!polled_by_kernel && part.length >= kLargePart && io_uring_sq_ready(&ring_) >= kApartMax) {
    submit();
  }
  io_uring_sqe& entry = next_entry();
  const bool read = part.operation == IoOperation::read;
  const auto offset = static_cast<uint64_t>(part.offset);
  const int buffer = memory_->index_of(part.data, part.length);
  if (buffer >= 0 && read) {
    io_uring_prep_read_fixed(&entry, part.handle, part.data, part.length, offset, buffer);
  } else if (buffer >= 0) {
    io_uring_prep_write_fixed(&entry, part.handle, part.data, part.length, offset, buffer);
  } else if (read) {
    io_uring_prep_read(&entry, part.handle, part.data, part.length, offset);
  } else {
    io_uring_prep_write(&entry, part.handle, part.data, part.length, offset);
  }
  const auto slot = static_cast<size_t>(part.handle);
  if (slot < file_registered_.size() && file_registered_[slot]) {
    entry.flags |= IOSQE_FIXED_FILE;  // the slot of a descriptor is its number
  }
  // The expected length travels with the request.
  entry.user_data = (uint64_t{part.length} << 32U) | part.token;
}

void UringRing::add_poll(int descriptor, uint64_t user_data) {
  io_uring_sqe& entry = next_entry();
  io_uring_prep_poll_add(&entry, descriptor, POLLIN);
  entry.user_data = user_data;
}

/// EAGAIN and EBUSY: the kernel is short of memory for now.
void UringRing::note_refusal(const char* what, int result) {
  if (result >= 0) {
    refusals_in_a_row_ = 0;
    return;
  }
  if (result == -EINTR) {
    return;
  }
  if ((result != -EAGAIN && result != -EBUSY) || ++refusals_in_a_row_ > kRefusalsMax) {
    fail(what, result);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void UringRing::submit() {
  const int result = io_uring_submit(&ring_);
  if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
    fail("cannot submit to the ring", result);
  }
}

void UringRing::wait() {
  note_refusal("cannot wait for the ring", io_uring_submit_and_wait(&ring_, 1));
}

void UringRing::poll_once() {
  note_refusal("cannot poll the ring", io_uring_submit_and_get_events(&ring_));
}

}  // namespace headrace::aio
