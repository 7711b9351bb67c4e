#include "aio/uring_backend.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "aio/uring_setup.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::aio {

namespace {

constexpr uint64_t kWakeToken = UINT32_MAX;
/// Looks at the device before reap() returns without an end; the engine then calls it again.
constexpr int kPollsMax = 1000;

PartCompletion completion_of(const io_uring_cqe& end) {
  return PartCompletion{.token = static_cast<uint32_t>(end.user_data),
                        .result = end.res,
                        .expected = static_cast<uint32_t>(end.user_data >> 32U)};
}

/// Whether a device without poll queues, or a file that is not open for direct I/O, answers so. A
/// transfer that is wrong in itself gets the same answer again from a ring with interrupts.
bool is_polling_refused(int32_t result) {
  return result == -EOPNOTSUPP || result == -EINVAL;
}

}  // namespace

UringBackend::UringBackend(int queue_depth) : queue_depth_(queue_depth) {
  HR_CHECK(queue_depth > 0, "queue_depth={}", queue_depth);
  event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd_ < 0) {
    throw IoError("cannot make an eventfd",
                  IoError::Where{.path = "io_uring", .error_number = errno});
  }
}

std::unique_ptr<UringBackend> UringBackend::create(int queue_depth, SubmissionMode mode) {
  std::unique_ptr<UringBackend> backend(new UringBackend(queue_depth));  // NOLINT: private
  if (mode != SubmissionMode::interrupt) {
    try {
      backend->open_ring(mode);
      return backend;
    } catch (const IoError& error) {
      log_message_once(LogLevel::info, std::string("io_uring ") + to_string(mode),
                       fmt::format("io_uring: {} is refused ({}); using interrupts, which cost a "
                                   "system call per batch of transfers",
                                   to_string(mode), error.what()));
    }
  }
  backend->open_ring(SubmissionMode::interrupt);
  return backend;
}

UringBackend::~UringBackend() {
  ring_.reset();
  ::close(event_fd_);
}

void UringBackend::open_ring(SubmissionMode mode) {
  // One entry more for the wake-up poll.
  ring_ = std::make_unique<UringRing>(static_cast<unsigned>(queue_depth_) + 1, mode);
  mode_ = mode;
  polled_.resize(mode == SubmissionMode::io_poll ? static_cast<size_t>(queue_depth_) : 0);
}

void UringBackend::note_registered() {
  bytes_registered_ = ring_->memory().bytes_registered();
}

void UringBackend::register_file(int handle) {
  ring_->enable();
  files_.push_back(handle);
  has_files_ = ring_->register_file(handle) || has_files_;
}

void UringBackend::unregister_file(int handle) {
  ring_->enable();
  std::erase(files_, handle);
  ring_->unregister_file(handle);
}

void UringBackend::register_memory(std::span<std::byte> memory) {
  ring_->enable();
  memory_.push_back(memory);
  ring_->memory().add(memory);
  bytes_offered_ += static_cast<int64_t>(memory.size());
  note_registered();
}

void UringBackend::submit(std::span<const PartRequest> parts) {
  ring_->enable();
  if (mode_ == SubmissionMode::io_poll) {
    send_polled(parts);
    return;
  }
  for (const PartRequest& part : parts) {
    ring_->add(part);
  }
  ring_->submit();
}

size_t UringBackend::reap(std::span<PartCompletion> ready) {
  ring_->enable();
  return mode_ == SubmissionMode::io_poll ? reap_polled(ready) : reap_waiting(ready);
}

void UringBackend::arm_wake() {
  if (!wake_armed_) {
    ring_->add_poll(event_fd_, kWakeToken);
    wake_armed_ = true;
  }
}

size_t UringBackend::reap_waiting(std::span<PartCompletion> ready) {
  arm_wake();
  if (!ring_->has_ends()) {
    ring_->wait();
  }
  size_t count = 0;
  int32_t wake_result = 0;
  ring_->take_ends([&](const io_uring_cqe& end) {
    if (end.user_data == kWakeToken) {
      wake_armed_ = false;
      wake_result = end.res;
    } else if (count < ready.size()) {
      ready[count++] = completion_of(end);
    } else {
      return false;
    }
    return true;
  });
  if (wake_result < 0) {
    throw IoError("cannot poll the eventfd",
                  IoError::Where{.path = "io_uring", .error_number = -wake_result});
  }
  if (!wake_armed_) {
    clear_wake();
  }
  return count;
}

void UringBackend::send_polled(std::span<const PartRequest> parts) {
  if (!refused_.empty()) {  // this ring is about to go
    refused_.insert(refused_.end(), parts.begin(), parts.end());
    return;
  }
  for (const PartRequest& part : parts) {
    polled_.at(part.token) = part;
    ++polled_count_;
    ring_->add(part);
  }
  ring_->submit();
}

/// An eventfd cannot be polled through a ring with I/O polling: while something is in flight the
/// device and the flag of wake() are looked at in turn, otherwise the thread sleeps on the eventfd.
size_t UringBackend::reap_polled(std::span<PartCompletion> ready) {
  if (polled_count_ == 0) {
    sleep_until_woken();
    return 0;
  }
  size_t count = 0;
  for (int polls = 0; polls < kPollsMax && count == 0 && polled_count_ > 0 && !woken_; ++polls) {
    ring_->poll_once();
    count = take_polled(ready);
  }
  if (woken_) {
    clear_wake();
  }
  if (!refused_.empty() && polled_count_ == 0) {
    fall_back();
  }
  return count;
}

size_t UringBackend::take_polled(std::span<PartCompletion> ready) {
  size_t count = 0;
  ring_->take_ends([&](const io_uring_cqe& end) {
    if (count == ready.size()) {
      return false;
    }
    const PartCompletion completion = completion_of(end);
    --polled_count_;
    if (is_polling_refused(completion.result)) {
      refused_.push_back(polled_.at(completion.token));
    } else {
      ready[count++] = completion;
    }
    return true;
  });
  return count;
}

void UringBackend::sleep_until_woken() {
  pollfd wanted{.fd = event_fd_, .events = POLLIN, .revents = 0};
  if (::poll(&wanted, 1, -1) < 0 && errno != EINTR) {
    throw IoError("cannot wait for the eventfd",
                  IoError::Where{.path = "io_uring", .error_number = errno});
  }
  clear_wake();
}

/// Replaces a ring with I/O polling that has nothing in flight.
void UringBackend::fall_back() {
  log_message_once(LogLevel::info, "io_uring io_poll",
                   "io_uring: the device or file system refuses io_poll (the device has no poll "
                   "queues, or the file is not open for direct I/O); using interrupts, which cost "
                   "a little more latency per transfer");
  ring_.reset();  // first, so that its memory does not count against the memlock limit any more
  open_ring(SubmissionMode::interrupt);
  ring_->enable();
  for (const int handle : files_) {
    ring_->register_file(handle);
  }
  for (const std::span<std::byte> memory : memory_) {
    ring_->memory().add(memory);
  }
  note_registered();
  submit(std::exchange(refused_, {}));
}

void UringBackend::clear_wake() {
  woken_ = false;
  uint64_t count = 0;
  if (::read(event_fd_, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR) {
    throw IoError("cannot read the eventfd",
                  IoError::Where{.path = "io_uring", .error_number = errno});
  }
}

void UringBackend::wake() {
  const uint64_t one = 1;
  ssize_t result = 0;
  do {
    result = ::write(event_fd_, &one, sizeof one);
  } while (result < 0 && errno == EINTR);
  // EAGAIN: the counter is full, so the poll is ready anyway.
  HR_CHECK(result == sizeof one || errno == EAGAIN, "errno={}", errno);
  woken_ = true;
}

std::string UringBackend::features() const {
  std::string text = to_string(mode_);
  const int64_t registered = bytes_registered_;
  const int64_t offered = bytes_offered_;
  if (registered == 0) {
    return text + (has_files_ ? ", registered files" : "");
  }
  text += has_files_ ? ", registered buffers and files" : ", registered buffers";
  if (registered < offered) {
    text += fmt::format(" ({} of {} of memory)", format_bytes(Bytes(registered)),
                        format_bytes(Bytes(offered)));
  }
  return text;
}

}  // namespace headrace::aio
