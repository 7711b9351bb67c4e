#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/serial_worker.h"
#include "device/device.h"

namespace headrace::engine::test {

/// A stream that tells of its ends late: what waits for its events runs before the host knows, as
/// on a GPU, whose streams report to different threads.
class LateStream final : public device::Stream {
 public:
  explicit LateStream(std::unique_ptr<device::Stream> stream)
      : stream_(std::move(stream)), teller_("late-ends") {}

  void copy_async(void* target, const void* source, Bytes size) override {
    stream_->copy_async(target, source, size);
  }
  void fill_zero_async(void* target, Bytes size) override {
    stream_->fill_zero_async(target, size);
  }
  void wait(const device::EventRef& event) override { stream_->wait(event); }
  device::EventRef record() override { return stream_->record(); }
  Completion record_completion() override {
    auto promise = std::make_shared<Promise>();
    teller_.post([promise, end = stream_->record_completion()] {
      try {
        end.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        promise->set_done();
      } catch (...) {
        promise->set_failed(std::current_exception());
      }
    });
    return promise->completion();
  }
  void run_on_host(std::function<void()> task) override { stream_->run_on_host(std::move(task)); }
  void synchronize() override { record_completion().wait(); }

 private:
  std::unique_ptr<device::Stream> stream_;
  SerialWorker teller_;
};

}  // namespace headrace::engine::test
