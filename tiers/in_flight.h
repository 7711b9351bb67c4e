#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace headrace::tiers {

/// Count of operations in flight, so that a destructor can wait for them. Thread-safe. end() is
/// the last thing an operation does: after it the owner may be gone.
class InFlight {
 public:
  void begin() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) {
      none_.notify_all();  // under the lock: the waiter destroys this object next
    }
  }
  void wait_for_none() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [&] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int64_t count_ = 0;
};

}  // namespace headrace::tiers
