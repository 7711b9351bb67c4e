#include "base/completion.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace headrace {

struct Completion::State {
  std::mutex mutex;
  std::condition_variable ended_changed;
  bool ended = false;
  std::exception_ptr error;
  std::vector<Callback> callbacks;
};

Completion Completion::done() {
  Promise promise;
  promise.set_done();
  return promise.completion();
}

Completion Completion::failed(std::exception_ptr error) {
  Promise promise;
  promise.set_failed(std::move(error));
  return promise.completion();
}

bool Completion::is_done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended;
}

void Completion::wait() const {
  std::unique_lock lock(state_->mutex);
  state_->ended_changed.wait(lock, [&] { return state_->ended; });
  if (state_->error) {
    std::rethrow_exception(state_->error);
  }
}

void Completion::on_done(Callback callback) const {
  std::exception_ptr error;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->ended) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
    error = state_->error;
  }
  callback(error);
}

Promise::Promise() : state_(std::make_shared<Completion::State>()) {}

Promise& Promise::operator=(Promise&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Promise::~Promise() {
  if (state_ == nullptr) {
    return;
  }
  const bool ended = [&] {
    const std::lock_guard lock(state_->mutex);
    return state_->ended;
  }();
  if (!ended) {
    end(std::make_exception_ptr(InternalError("internal error: an operation was abandoned")));
  }
}

Completion Promise::completion() const {
  return Completion(state_);
}

void Promise::set_done() {
  end(nullptr);
}

void Promise::set_failed(const std::exception_ptr& error) {
  end(error);
}

void Promise::end(const std::exception_ptr& error) {
  // The waiter may destroy this promise as soon as it sees the end: keep the state alive here.
  const std::shared_ptr<Completion::State> state = state_;
  std::vector<Completion::Callback> callbacks;
  {
    const std::lock_guard lock(state->mutex);
    if (state->ended) {
      return;
    }
    state->ended = true;
    state->error = error;
    callbacks.swap(state->callbacks);
  }
  // Unlocked, so that who wakes up does not sleep again on the lock.
  state->ended_changed.notify_all();
  for (const auto& callback : callbacks) {
    callback(error);
  }
}

Completion when_all(const std::vector<Completion>& parts) {
  if (parts.empty()) {
    return Completion::done();
  }
  struct Join {
    Promise promise;
    std::mutex mutex;
    size_t open = 0;
    std::exception_ptr error;
  };
  auto join = std::make_shared<Join>();
  join->open = parts.size();
  Completion all = join->promise.completion();
  for (const Completion& part : parts) {
    part.on_done([join](const std::exception_ptr& error) {
      std::exception_ptr first;
      {
        const std::lock_guard lock(join->mutex);
        if (error && !join->error) {
          join->error = error;
        }
        if (--join->open > 0) {
          return;
        }
        first = join->error;
      }
      if (first) {
        join->promise.set_failed(first);
      } else {
        join->promise.set_done();
      }
    });
  }
  return all;
}

}  // namespace headrace
