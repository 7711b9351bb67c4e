#include "aio/uring_backend.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "aio/uring_setup.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::aio {

namespace {

constexpr uint32_t kWakeToken = UINT32_MAX;
constexpr unsigned kFilesMax = 1024;    ///< descriptors from here on are used unregistered
constexpr unsigned kBuffersMax = 1024;  ///< of up to 1 GiB each
constexpr size_t kBufferBytesMax = size_t{1} << 30;  ///< the kernel's limit per buffer
constexpr int kRefusalsMax = 10000;                  ///< of io_uring_enter in a row, 0.1 ms apart

[[noreturn]] void fail(const char* what, int result) {
  throw IoError(what, IoError::Where{.path = "io_uring", .error_number = -result});
}

std::string text_of(int result) {
  return std::generic_category().message(-result);
}

}  // namespace

std::unique_ptr<UringBackend> UringBackend::create(int queue_depth) {
  HR_CHECK(queue_depth > 0, "queue_depth={}", queue_depth);
  std::unique_ptr<UringBackend> backend(new UringBackend());  // NOLINT: private constructor
  // One entry more for the wake-up poll.
  if (const int result = open_best_ring(static_cast<unsigned>(queue_depth) + 1, backend->ring_);
      result < 0) {
    fail("cannot set up a ring", result);
  }
  backend->ring_open_ = true;
  if (const int result = check_operations(backend->ring_); result < 0) {
    fail("the ring lacks read, write or poll", result);
  }
  backend->event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (backend->event_fd_ < 0) {
    fail("cannot make an eventfd", -errno);
  }
  backend->make_tables();
  return backend;
}

UringBackend::~UringBackend() {
  if (ring_open_) {
    io_uring_queue_exit(&ring_);
  }
  if (event_fd_ >= 0) {
    ::close(event_fd_);
  }
}

void UringBackend::make_tables() {
  if (const int result = io_uring_register_files_sparse(&ring_, kFilesMax); result >= 0) {
    file_registered_.assign(kFilesMax, false);
  } else {
    log_message_once(LogLevel::info, "io_uring files",
                     fmt::format("io_uring: no table of registered files ({}); costs a file "
                                 "look-up per transfer",
                                 text_of(result)));
  }
  if (const int result = io_uring_register_buffers_sparse(&ring_, kBuffersMax); result >= 0) {
    buffer_table_ = true;
  } else {
    log_message_once(LogLevel::info, "io_uring buffers",
                     fmt::format("io_uring: no table of registered buffers ({}); costs CPU time "
                                 "to pin the pages of every transfer",
                                 text_of(result)));
  }
}

/// The ring is enabled by the first call of the engine thread, which becomes its single issuer.
void UringBackend::enable() {
  if (enabled_) {
    return;
  }
  if (const int result = enable_ring(ring_); result < 0) {
    fail("cannot enable the ring", result);
  }
  enabled_ = true;
}

void UringBackend::register_file(int handle) {
  enable();
  const auto slot = static_cast<size_t>(handle);
  if (slot >= file_registered_.size()) {
    return;
  }
  const int result =
      io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &handle, 1);
  file_registered_[slot] = result == 1;
  if (result == 1) {
    has_files_ = true;
  } else {
    log_message_once(LogLevel::info, "io_uring file",
                     fmt::format("io_uring: a file could not be registered ({}); costs a file "
                                 "look-up per transfer",
                                 text_of(result)));
  }
}

void UringBackend::unregister_file(int handle) {
  enable();
  const auto slot = static_cast<size_t>(handle);
  if (slot >= file_registered_.size() || !file_registered_[slot]) {
    return;
  }
  const int empty = -1;
  const int result = io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &empty, 1);
  if (result < 0) {  // the table keeps the file until the slot is used again; nothing refers to it
    log_debug("io_uring: cannot unregister a file ({})", text_of(result));
  }
  file_registered_[slot] = false;
}

void UringBackend::register_memory(std::span<std::byte> memory) {
  enable();
  while (!memory.empty() && buffer_table_) {
    const auto chunk = memory.first(std::min(memory.size(), kBufferBytesMax));
    if (!register_chunk(chunk)) {
      return;
    }
    memory = memory.subspan(chunk.size());
  }
}

bool UringBackend::register_chunk(std::span<std::byte> chunk) {
  std::byte* const end = chunk.data() + chunk.size();
  const auto place = std::lower_bound(
      buffers_.begin(), buffers_.end(), chunk.data(),
      [](const Buffer& buffer, const std::byte* begin) { return buffer.end <= begin; });
  if (place != buffers_.end() && place->begin < end) {
    return true;  // registered before, at least in part
  }
  const auto index = static_cast<unsigned>(buffers_.size());
  iovec memory{.iov_base = chunk.data(), .iov_len = chunk.size()};
  const __u64 tag = 0;
  const int result = index < kBuffersMax
                         ? io_uring_register_buffers_update_tag(&ring_, index, &memory, &tag, 1)
                         : -ENOSPC;
  if (result != 1) {
    log_message_once(
        LogLevel::info, "io_uring memory",
        fmt::format("io_uring: registering {} of memory was refused ({}){}; transfers work, but "
                    "cost CPU time to pin their pages each time",
                    format_bytes(Bytes(static_cast<int64_t>(chunk.size()))), text_of(result),
                    result == -ENOMEM ? ": raise the memlock limit (ulimit -l)" : ""));
    return false;
  }
  buffers_.insert(place,
                  Buffer{.begin = chunk.data(), .end = end, .index = static_cast<int>(index)});
  has_buffers_ = true;
  return true;
}

const UringBackend::Buffer* UringBackend::buffer_of(const PartRequest& part) const {
  const auto place = std::upper_bound(
      buffers_.begin(), buffers_.end(), part.data,
      [](const std::byte* data, const Buffer& buffer) { return data < buffer.end; });
  if (place == buffers_.end() || part.data < place->begin || part.data + part.length > place->end) {
    return nullptr;
  }
  return &*place;
}

void UringBackend::prepare(io_uring_sqe& entry, const PartRequest& part) const {
  const bool read = part.operation == IoOperation::read;
  const auto offset = static_cast<uint64_t>(part.offset);
  const Buffer* buffer = buffer_of(part);
  if (buffer != nullptr && read) {
    io_uring_prep_read_fixed(&entry, part.handle, part.data, part.length, offset, buffer->index);
  } else if (buffer != nullptr) {
    io_uring_prep_write_fixed(&entry, part.handle, part.data, part.length, offset, buffer->index);
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

io_uring_sqe& UringBackend::next_entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  HR_CHECK(entry != nullptr, "more than {} parts in flight", ring_.sq.ring_entries);
  return *entry;
}

void UringBackend::submit(std::span<const PartRequest> parts) {
  enable();
  for (const PartRequest& part : parts) {
    prepare(next_entry(), part);
  }
  const int result = io_uring_submit(&ring_);
  // What the kernel could not take now stays in the ring and goes with the next reap().
  if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
    fail("cannot submit to the ring", result);
  }
}

void UringBackend::arm_wake() {
  if (wake_armed_) {
    return;
  }
  io_uring_sqe& entry = next_entry();
  io_uring_prep_poll_add(&entry, event_fd_, POLLIN);
  entry.user_data = kWakeToken;
  wake_armed_ = true;
}

void UringBackend::enter() {
  const int result = io_uring_submit_and_wait(&ring_, 1);
  if (result >= 0) {
    refusals_in_a_row_ = 0;
    return;
  }
  if (result == -EINTR) {
    return;
  }
  if ((result != -EAGAIN && result != -EBUSY) || ++refusals_in_a_row_ > kRefusalsMax) {
    fail("cannot wait for the ring", result);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(100));  // the kernel is short of memory
}

void UringBackend::take_wake(int32_t result) {
  wake_armed_ = false;
  if (result < 0) {
    fail("cannot poll the eventfd", result);
  }
  uint64_t count = 0;
  if (::read(event_fd_, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR) {
    fail("cannot read the eventfd", -errno);
  }
}

size_t UringBackend::reap(std::span<PartCompletion> ready) {
  enable();
  arm_wake();
  if (io_uring_cq_ready(&ring_) == 0) {
    enter();
  }
  size_t count = 0;
  unsigned taken = 0;
  unsigned head = 0;
  io_uring_cqe* end = nullptr;
  bool woken = false;
  int32_t wake_result = 0;
  io_uring_for_each_cqe(&ring_, head, end) {
    if (end->user_data == kWakeToken) {
      woken = true;
      wake_result = end->res;
    } else if (count < ready.size()) {
      ready[count++] = PartCompletion{.token = static_cast<uint32_t>(end->user_data),
                                      .result = end->res,
                                      .expected = static_cast<uint32_t>(end->user_data >> 32U)};
    } else {
      break;
    }
    ++taken;
  }
  io_uring_cq_advance(&ring_, taken);
  if (woken) {
    take_wake(wake_result);
  }
  return count;
}

void UringBackend::wake() {
  const uint64_t one = 1;
  ssize_t result = 0;
  do {
    result = ::write(event_fd_, &one, sizeof one);
  } while (result < 0 && errno == EINTR);
  // EAGAIN: the counter is full, so the poll is ready anyway.
  HR_CHECK(result == sizeof one || errno == EAGAIN, "errno={}", errno);
}

std::string UringBackend::features() const {
  if (has_buffers_) {
    return has_files_ ? "registered buffers and files" : "registered buffers";
  }
  return has_files_ ? "registered files" : "";
}

}  // namespace headrace::aio
