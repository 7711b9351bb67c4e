#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_stream.h"

namespace headrace::device::testing {

using cuda::EventHandle;
using cuda::Status;
using cuda::StreamHandle;

namespace {

constexpr int kCaptureIsolation = 905;
constexpr int kCapturedEvent = 907;

}  // namespace

std::shared_ptr<FakeCuda::Event> FakeCuda::find(EventHandle event) const {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  return found != events_.end() ? found->second : nullptr;
}

Status FakeCuda::stream_wait_event(StreamHandle stream, EventHandle event) {
  if (const Status failed = enter("stream_wait_event"); !failed.is_ok()) {
    return failed;
  }
  Stream* const waiting = find(stream);
  const auto waited = find(event);
  if (waiting == nullptr || waited == nullptr) {
    return runtime(kInvalidHandle);
  }
  if (const Status refused = refuse_in_capture(*waiting, kCaptureIsolation); !refused.is_ok()) {
    return refused;
  }
  const std::lock_guard lock(waited->mutex);
  if (waited->is_captured) {
    return runtime(kCaptureIsolation);  // would draw this stream into the capture
  }
  // What was recorded last counts, as of now.
  waiting->worker.post([reached = waited->reached] { reached.wait(); });
  return runtime(0);
}

Status FakeCuda::create_event(EventHandle* event, const char* call, bool is_timed) {
  if (const Status failed = enter(call); !failed.is_ok()) {
    return failed;
  }
  auto made = std::make_shared<Event>();
  made->is_timed = is_timed;
  *event = reinterpret_cast<EventHandle>(made.get());
  const std::lock_guard lock(mutex_);
  events_.emplace(*event, std::move(made));
  return runtime(0);
}

Status FakeCuda::event_create(EventHandle* event) {
  return create_event(event, "event_create", false);
}

Status FakeCuda::timed_event_create(EventHandle* event) {
  return create_event(event, "timed_event_create", true);
}

Status FakeCuda::event_destroy(EventHandle event) {
  const Status entered = enter("event_destroy");
  const std::lock_guard lock(mutex_);
  return events_.erase(event) == 1 ? entered : runtime(kInvalidHandle);
}

Status FakeCuda::event_record(EventHandle event, StreamHandle stream) {
  if (const Status failed = enter("event_record"); !failed.is_ok()) {
    return failed;
  }
  Stream* const recording = find(stream);
  const auto recorded = find(event);
  if (recording == nullptr || recorded == nullptr) {
    return runtime(kInvalidHandle);
  }
  const auto promise = std::make_shared<Promise>();
  const bool is_captured = is_in_capture(*recording);
  {
    const std::lock_guard lock(recorded->mutex);
    recorded->reached = promise->completion();
    recorded->is_captured = is_captured;
    recorded->time.reset();
  }
  if (is_captured) {
    promise->set_done();
    return runtime(0);
  }
  recording->worker.post([promise, recorded] {
    {
      const std::lock_guard lock(recorded->mutex);
      recorded->time = std::chrono::steady_clock::now();
    }
    promise->set_done();
  });
  return runtime(0);
}

Status FakeCuda::event_query(EventHandle event) {
  const Status entered = enter("event_query");
  const auto found = find(event);
  if (found == nullptr) {
    return runtime(kInvalidHandle);
  }
  const std::lock_guard lock(found->mutex);
  if (found->is_captured) {
    return runtime(kCapturedEvent);
  }
  return !found->reached.is_done() ? runtime(cuda::kNotReady) : entered;
}

Status FakeCuda::event_synchronize(EventHandle event) {
  const Status entered = enter("event_synchronize");
  const auto found = find(event);
  if (found == nullptr) {
    return runtime(kInvalidHandle);
  }
  std::optional<Completion> reached;
  {
    const std::lock_guard lock(found->mutex);
    if (found->is_captured) {
      return runtime(kCapturedEvent);
    }
    reached = found->reached;
  }
  reached->wait();
  return entered.is_ok() ? runtime(sticky_) : entered;
}

Status FakeCuda::event_elapsed(float* milliseconds, EventHandle begin, EventHandle end) {
  if (const Status failed = enter("event_elapsed"); !failed.is_ok()) {
    return failed;
  }
  std::optional<std::chrono::steady_clock::time_point> times[2];
  for (int i = 0; i < 2; ++i) {
    const auto event = find(i == 0 ? begin : end);
    if (event == nullptr || !event->is_timed) {
      return runtime(kInvalidHandle);
    }
    const std::lock_guard lock(event->mutex);
    if (!event->time) {
      return runtime(event->reached.is_done() ? kInvalidHandle : cuda::kNotReady);
    }
    times[i] = event->time;
  }
  *milliseconds = pretended_ms_.value_or(
      std::chrono::duration<float, std::milli>(*times[1] - *times[0]).count());
  return runtime(0);
}

}  // namespace headrace::device::testing
