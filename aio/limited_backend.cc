#include "aio/limited_backend.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>

namespace headrace::aio {

namespace {

constexpr size_t kReapedMax = 128;

size_t index_of(IoOperation operation) {
  return static_cast<size_t>(operation);
}

}  // namespace

WakeTimer::WakeTimer(Backend& backend) : backend_(backend), thread_([this] { run(); }) {}

WakeTimer::~WakeTimer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void WakeTimer::set(Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  if (when < when_) {
    changed_.notify_one();  // a later time is seen when the earlier one has come
  }
  when_ = when;
}

void WakeTimer::run() {
  ::pthread_setname_np(::pthread_self(), "headrace-limit");  // a name too long is the only error
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);            // a hint: 1 ns instead of 50 us
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (when_ == Clock::time_point::max()) {
      changed_.wait(lock);
    } else if (Clock::now() < when_) {
      changed_.wait_until(lock, when_);
    } else {
      when_ = Clock::time_point::max();
      backend_.wake();
    }
  }
}

LimitedBackend::LimitedBackend(std::unique_ptr<Backend> backend, const IoLimits& limits)
    : backend_(std::move(backend)),
      limits_(limits),
      lanes_{RateLane(limits.read_bytes_per_second), RateLane(limits.write_bytes_per_second)},
      reaped_(kReapedMax),
      timer_(*backend_) {}

void LimitedBackend::submit(std::span<const PartRequest> parts) {
  const Clock::time_point now = Clock::now();
  for (const PartRequest& part : parts) {
    const RateLane::Slot slot =
        lanes_[index_of(part.operation)].admit(now, Bytes(int64_t{part.length}));
    due_.resize(std::max(due_.size(), size_t{part.token} + 1));
    due_[part.token] = slot.end + limits_.latency;
    waiting_[index_of(part.operation)].push_back({part, slot.begin});
  }
  send_due(now);
}

/// Hands over what has its turn soon.
void LimitedBackend::send_due(Clock::time_point now) {
  batch_.clear();
  for (std::deque<Waiting>& waiting : waiting_) {
    while (!waiting.empty() && waiting.front().begin <= now + kLead) {
      batch_.push_back(waiting.front().part);
      waiting.pop_front();
    }
  }
  if (!batch_.empty()) {
    backend_->submit(batch_);
  }
}

size_t LimitedBackend::take_due(std::span<PartCompletion> ready, Clock::time_point now) {
  size_t count = 0;
  while (count < ready.size() && !ended_.empty() && ended_.top().due <= now) {
    ready[count++] = ended_.top().completion;
    ended_.pop();
  }
  return count;
}

LimitedBackend::Clock::time_point LimitedBackend::next_event() const {
  Clock::time_point next = ended_.empty() ? Clock::time_point::max() : ended_.top().due;
  for (const std::deque<Waiting>& waiting : waiting_) {
    if (!waiting.empty()) {
      next = std::min(next, waiting.front().begin - kLead);
    }
  }
  return next;
}

size_t LimitedBackend::reap(std::span<PartCompletion> ready) {
  Clock::time_point now = Clock::now();
  send_due(now);
  if (const size_t count = take_due(ready, now); count > 0) {
    return count;
  }
  timer_.set(next_event());
  const size_t reaped = backend_->reap(reaped_);
  for (size_t i = 0; i < reaped; ++i) {
    ended_.push({reaped_[i], due_[reaped_[i].token]});
  }
  now = Clock::now();
  send_due(now);
  return take_due(ready, now);
}

std::string LimitedBackend::features() const {
  std::string text = backend_->features();
  const auto add = [&](const char* what, double bytes_per_second) {
    if (bytes_per_second > 0) {
      text += fmt::format("{}{} limited to {}/s", text.empty() ? "" : ", ", what,
                          format_bytes(Bytes(static_cast<int64_t>(bytes_per_second))));
    }
  };
  add("reads", limits_.read_bytes_per_second);
  add("writes", limits_.write_bytes_per_second);
  return text;
}

}  // namespace headrace::aio
