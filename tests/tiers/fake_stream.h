#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/serial_worker.h"
#include "device/device.h"

namespace headrace::tiers::test {

/// A stream for tests: copies run on one thread. After fail_next() the next copy fails, and the
/// stream reports that from then on, as device::Stream says.
class FakeStream final : public device::Stream {
 public:
  FakeStream() : worker_("fake-stream") {}

  void fail_next() { fail_ = true; }
  int64_t copies() const { return copies_; }
  /// Runs `task` in the order of the stream.
  void run_on_host(std::function<void()> task) override { worker_.post(std::move(task)); }

  void copy_async(void* target, const void* source, Bytes size) override {
    worker_.post([this, target, source, size] {
      if (fail_.exchange(false)) {
        failed_ = true;
      }
      if (!failed_) {
        std::memcpy(target, source, static_cast<size_t>(size.count()));
        ++copies_;
      }
    });
  }
  void fill_zero_async(void* target, Bytes size) override {
    worker_.post([target, size] { std::memset(target, 0, static_cast<size_t>(size.count())); });
  }
  void wait(const device::EventRef& event) override {
    worker_.post([this, event] {
      try {
        event->wait();
      } catch (const Error&) {
        failed_ = true;
      }
    });
  }
  device::EventRef record() override {
    return std::make_shared<const CompletionEvent>(record_completion());
  }
  Completion record_completion() override {
    auto promise = std::make_shared<Promise>();
    worker_.post([this, promise] {
      if (failed_) {
        promise->set_failed(std::make_exception_ptr(IoError("the copy failed", {"stream"})));
      } else {
        promise->set_done();
      }
    });
    return promise->completion();
  }
  void synchronize() override { record_completion().wait(); }

 private:
  class CompletionEvent final : public device::Event {
   public:
    explicit CompletionEvent(Completion end) : end_(std::move(end)) {}
    bool is_done() const override { return end_.is_done(); }
    void wait() const override { end_.wait(); }

   private:
    Completion end_;
  };

  std::atomic<bool> fail_{false};
  std::atomic<int64_t> copies_{0};
  bool failed_ = false;  // of the worker's thread
  SerialWorker worker_;
};

}  // namespace headrace::tiers::test
