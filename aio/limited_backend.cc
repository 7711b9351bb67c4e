#include "aio/limited_backend.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>

namespace headrace::aio {

namespace {

constexpr size_t kReapedMax = 128;

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
      lanes_(limits),
      reaped_(kReapedMax),
      timer_(*backend_) {}

void LimitedBackend::submit(std::span<const PartRequest> parts) {
  const Clock::time_point now = Clock::now();
  for (const PartRequest& part : parts) {
    lanes_.admit(part.operation, part.token, Bytes(int64_t{part.length}), now);
    progress_.resize(std::max(progress_.size(), size_t{part.token} + 1));
    waiting_[index_of(part.operation)].push_back(part);
    bytes_waiting_[index_of(part.operation)] += part.length;
  }
  send_due(now);
}

double LimitedBackend::seconds_to_turn(IoOperation operation) const {
  return lanes_.seconds_for(operation,
                            lanes_.bytes_waiting(operation) - bytes_waiting_[index_of(operation)]);
}

/// Hands over what has its turn soon.
void LimitedBackend::send_due(Clock::time_point now) {
  note_served(now);
  batch_.clear();
  for (const IoOperation operation : {IoOperation::read, IoOperation::write}) {
    std::deque<PartRequest>& waiting = waiting_[index_of(operation)];
    while (!waiting.empty() && seconds_to_turn(operation) <= kLeadSeconds) {
      bytes_waiting_[index_of(operation)] -= waiting.front().length;
      batch_.push_back(waiting.front());
      waiting.pop_front();
    }
  }
  if (!batch_.empty()) {
    backend_->submit(batch_);
  }
}

void LimitedBackend::note_served(Clock::time_point now) {
  for (const DriveLanes::End& end : lanes_.take_served(now)) {
    progress_[end.token].served = end.time;
    end_if_complete(end.token);
  }
}

void LimitedBackend::end_if_complete(uint32_t token) {
  Progress& progress = progress_[token];
  if (progress.completion && progress.served) {
    ended_.push({*progress.completion, *progress.served + limits_.latency});
    progress = {};
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

LimitedBackend::Clock::time_point LimitedBackend::next_event(Clock::time_point now) const {
  Clock::time_point next = lanes_.next_end();
  if (!ended_.empty()) {
    next = std::min(next, ended_.top().due);
  }
  for (const IoOperation operation : {IoOperation::read, IoOperation::write}) {
    if (!waiting_[index_of(operation)].empty()) {
      const std::chrono::duration<double> wait(seconds_to_turn(operation) - kLeadSeconds);
      next = std::min(next, now + std::chrono::duration_cast<Clock::duration>(wait));
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
  timer_.set(next_event(now));
  const size_t reaped = backend_->reap(reaped_);
  for (size_t i = 0; i < reaped; ++i) {
    progress_[reaped_[i].token].completion = reaped_[i];
    end_if_complete(reaped_[i].token);
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
  add("reads and writes together", limits_.both_bytes_per_second);
  return text;
}

}  // namespace headrace::aio
