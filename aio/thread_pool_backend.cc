#include "aio/thread_pool_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.h"

namespace headrace::aio {

namespace {

int32_t transfer(const PartRequest& part) {
  const ssize_t moved = part.operation == IoOperation::read
                            ? ::pread(part.handle, part.data, part.length, part.offset)
                            : ::pwrite(part.handle, part.data, part.length, part.offset);
  return moved < 0 ? -errno : static_cast<int32_t>(moved);
}

}  // namespace

ThreadPoolBackend::ThreadPoolBackend(int threads) {
  HR_CHECK(threads > 0, "threads={}", threads);
  threads_.reserve(static_cast<size_t>(threads));
  try {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  } catch (...) {  // the system gave fewer threads: end those that run, then report
    stop();
    throw;
  }
}

ThreadPoolBackend::~ThreadPoolBackend() {
  stop();
}

void ThreadPoolBackend::stop() {
  {
    const std::lock_guard lock(work_mutex_);
    stopping_ = true;
  }
  work_changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadPoolBackend::work() {
  for (;;) {
    PartRequest part;
    {
      std::unique_lock lock(work_mutex_);
      work_changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) {
        return;
      }
      part = waiting_.front();
      waiting_.pop_front();
    }
    const int32_t result = transfer(part);
    // Notified under the lock: the engine may destroy this backend once it has reaped the last end.
    const std::lock_guard lock(ended_mutex_);
    ended_.push_back(
        PartCompletion{.token = part.token, .result = result, .expected = part.length});
    ended_changed_.notify_one();
  }
}

void ThreadPoolBackend::submit(std::span<const PartRequest> parts) {
  {
    const std::lock_guard lock(work_mutex_);
    waiting_.insert(waiting_.end(), parts.begin(), parts.end());
  }
  if (parts.size() == 1) {
    work_changed_.notify_one();
  } else {
    work_changed_.notify_all();
  }
}

size_t ThreadPoolBackend::reap(std::span<PartCompletion> ready) {
  std::unique_lock lock(ended_mutex_);
  ended_changed_.wait(lock, [&] { return woken_ || !ended_.empty(); });
  woken_ = false;
  size_t count = 0;
  while (count < ready.size() && !ended_.empty()) {
    ready[count++] = ended_.front();
    ended_.pop_front();
  }
  return count;
}

void ThreadPoolBackend::wake() {
  const std::lock_guard lock(ended_mutex_);
  woken_ = true;
  ended_changed_.notify_one();
}

std::string ThreadPoolBackend::features() const {
  return fmt::format("{} threads", threads_.size());
}

}  // namespace headrace::aio
