#include "device/limited_stream.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/rate_lane.h"

namespace headrace::device {

namespace {

class LimitedStream : public Stream {
 public:
  LimitedStream(std::unique_ptr<Stream> stream, double bytes_per_second)
      : lane_(bytes_per_second), stream_(std::move(stream)) {}

  void copy_async(void* target, const void* source, Bytes size) override {
    const auto posted = Clock::now();
    stream_->copy_async(target, source, size);
    stream_->run_on_host([this, posted, size] {
      std::this_thread::sleep_until(lane_.admit(std::max(posted, waited_until_), size).end);
    });
  }
  void fill_zero_async(void* target, Bytes size) override {
    stream_->fill_zero_async(target, size);
  }
  void wait(const EventRef& event) override {
    stream_->wait(event);
    stream_->run_on_host([this] { waited_until_ = Clock::now(); });
  }
  EventRef record() override { return stream_->record(); }
  Completion record_completion() override { return stream_->record_completion(); }
  void run_on_host(std::function<void()> task) override {
    stream_->run_on_host([this, task = std::move(task)] {
      task();
      waited_until_ = Clock::now();
    });
  }
  void synchronize() override { stream_->synchronize(); }

 private:
  using Clock = RateLane::Clock;

  // Of the stream's host tasks, which run one at a time.
  RateLane lane_;
  Clock::time_point waited_until_{};  ///< the end of what was no copy
  std::unique_ptr<Stream> stream_;    ///< last: it drains before they go
};

}  // namespace

std::unique_ptr<Stream> make_limited_stream(std::unique_ptr<Stream> stream,
                                            double bytes_per_second) {
  HR_CHECK(stream != nullptr && bytes_per_second > 0, "bytes_per_second={}", bytes_per_second);
  return std::make_unique<LimitedStream>(std::move(stream), bytes_per_second);
}

}  // namespace headrace::device
