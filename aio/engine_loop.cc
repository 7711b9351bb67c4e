// The engine's thread.

#include <pthread.h>

#include <utility>

#include "aio/engine.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::aio {

void Engine::run() {
  ::pthread_setname_np(::pthread_self(), "headrace-io");  // a name too long is the only error
  try {
    loop();
    close_files();
    backend_.reset();
  } catch (const std::exception& error) {
    log_message(LogLevel::error, std::string("the I/O engine stopped: ") + error.what());
    fail_everything(std::current_exception());
  }
}

void Engine::loop() {
  for (;;) {
    const bool stopping = take_posted();
    submit_parts();
    if (stopping && scheduler_.is_idle()) {
      return;
    }
    reap_parts();
    submit_parts();  // the device stays busy while completions end
    tune_depth();
    end_requests();
  }
}

/// Takes over what was posted and runs posted calls; from here on a post wakes the backend. True
/// when the engine is to stop and nothing was left.
bool Engine::take_posted() {
  std::vector<std::function<void()>> calls;
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(posted_);
    calls.swap(calls_);
    is_waiting_ = true;
    can_send_ = {true, true};  // until submit_parts() has seen what was taken
    stopping = stopping_;
  }
  for (const std::function<void()>& call : calls) {
    call();  // reports its failure to its caller
  }
  for (std::shared_ptr<PendingRequest>& request : taken_) {
    scheduler_.add(std::move(request));
  }
  taken_.clear();
  return stopping;
}

void Engine::tune_depth() {
  if (!tuner_) {
    return;
  }
  const bool reads = scheduler_.is_wanted(IoOperation::read);
  const bool writes = scheduler_.is_wanted(IoOperation::write);
  if (!reads && !writes) {
    return;
  }
  const QueueState state{
      .seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count(),
      .bytes_done =
          scheduler_.bytes_done(IoOperation::read) + scheduler_.bytes_done(IoOperation::write),
      .load = reads && writes ? QueueLoad::both
              : reads         ? QueueLoad::read
                              : QueueLoad::write,
      .is_full = (!reads || scheduler_.is_waiting(IoOperation::read)) &&
                 (!writes || scheduler_.is_waiting(IoOperation::write))};
  scheduler_.set_depth(tuner_->note(state));
}

void Engine::submit_parts() {
  const std::span<const PartRequest> parts = scheduler_.next_parts();
  if (!parts.empty()) {
    backend_->submit(parts);
  }
  const std::lock_guard lock(mutex_);
  can_send_ = {scheduler_.may_go(IoOperation::read), scheduler_.may_go(IoOperation::write)};
  note_busy();
}

void Engine::reap_parts() {
  const size_t count = backend_->reap(ready_);
  for (size_t i = 0; i < count; ++i) {
    scheduler_.settle(ready_[i], ended_);
  }
  const std::lock_guard lock(mutex_);
  is_waiting_ = false;  // what is posted from now on is taken without a wake-up
  note_busy();
}

void Engine::note_busy() {
  read_clock_.note(scheduler_.in_flight(IoOperation::read) > 0);
  write_clock_.note(scheduler_.in_flight(IoOperation::write) > 0);
  statistics_.reads_in_flight = scheduler_.in_flight(IoOperation::read);
  statistics_.writes_in_flight = scheduler_.in_flight(IoOperation::write);
}

void Engine::end_requests() {
  if (ended_.empty()) {
    return;
  }
  {
    // Before the completions: who waits for one finds its bytes counted and its file free.
    const std::lock_guard lock(mutex_);
    statistics_.bytes_read = scheduler_.bytes_done(IoOperation::read);
    statistics_.bytes_written = scheduler_.bytes_done(IoOperation::write);
    statistics_.requests += static_cast<int64_t>(ended_.size());
    for (const std::shared_ptr<PendingRequest>& request : ended_) {
      --request->file->uses;
    }
    uses_changed_.notify_all();
  }
  for (const std::shared_ptr<PendingRequest>& request : ended_) {
    if (request->error) {
      request->promise.set_failed(std::exchange(request->error, nullptr));
    } else {
      request->promise.set_done();
    }
  }
  ended_.clear();
}

void Engine::fail_everything(const std::exception_ptr& error) {
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(mutex_);
    broken_ = error;
    taken_.insert(taken_.end(), posted_.begin(), posted_.end());
    posted_.clear();
    calls.swap(calls_);
    is_waiting_ = false;
  }
  scheduler_.fail_all(error, ended_);
  for (const std::shared_ptr<PendingRequest>& request : taken_) {
    if (request != nullptr) {
      request->error = error;
      ended_.push_back(request);
    }
  }
  taken_.clear();
  for (const std::function<void()>& call : calls) {
    call();
  }
  {
    const std::lock_guard lock(mutex_);
    note_busy();
  }
  end_requests();
}

}  // namespace headrace::aio
