#include "device/cpu/cpu_stream.h"

#include <cstring>
#include <memory>

#include "base/check.h"

namespace headrace::device::cpu {

void CpuStream::run_on_host(std::function<void()> task) {
  worker_.post([this, task = std::move(task)] {
    if (error_) {
      return;
    }
    try {
      task();
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void CpuStream::copy_async(void* target, const void* source, Bytes size) {
  HR_CHECK(size.count() >= 0 && (size.count() == 0 || (target != nullptr && source != nullptr)),
           "copy of {} bytes from {} to {}", size, fmt::ptr(source), fmt::ptr(target));
  if (size.count() > 0) {
    run_on_host([=] { std::memcpy(target, source, static_cast<size_t>(size.count())); });
  }
}

void CpuStream::fill_zero_async(void* target, Bytes size) {
  HR_CHECK(size.count() >= 0 && (size.count() == 0 || target != nullptr),
           "zero fill of {} bytes at {}", size, fmt::ptr(target));
  if (size.count() > 0) {
    run_on_host([=] { std::memset(target, 0, static_cast<size_t>(size.count())); });
  }
}

void CpuStream::wait(const EventRef& event) {
  HR_CHECK(event != nullptr, "stream asked to wait for no event");
  run_on_host([event] { event->wait(); });
}

EventRef CpuStream::record() {
  return std::make_shared<CpuEvent>(record_completion());
}

Completion CpuStream::record_completion() {
  const auto promise = std::make_shared<Promise>();
  worker_.post([this, promise] {
    if (error_) {
      promise->set_failed(error_);
    } else {
      promise->set_done();
    }
  });
  return promise->completion();
}

void CpuStream::synchronize() {
  record_completion().wait();
}

}  // namespace headrace::device::cpu
