#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace headrace {

/// The end of one asynchronous operation. A cheap handle to shared state; any thread may use it.
/// It ends once: done, or failed with an exception.
class Completion {
 public:
  /// Called with nullptr on success. Must not throw.
  using Callback = std::function<void(std::exception_ptr)>;

  /// Already done.
  static Completion done();
  static Completion failed(std::exception_ptr error);

  bool is_done() const;
  /// Blocks until the end; rethrows the operation's error.
  void wait() const;
  /// Runs `callback` once at the end, on the finishing thread, or at once if it has ended.
  void on_done(Callback callback) const;

 private:
  friend class Promise;
  struct State;
  explicit Completion(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// The producer's side of a Completion. Destroyed without an end, it fails its completion with an
/// InternalError so that nobody waits for ever. Move-only.
class Promise {
 public:
  Promise();
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept;
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;
  ~Promise();

  Completion completion() const;
  void set_done();
  void set_failed(const std::exception_ptr& error);

 private:
  void end(const std::exception_ptr& error);
  std::shared_ptr<Completion::State> state_;
};

/// Ends when all have ended; fails with the first error in the order of `parts`' ends.
Completion when_all(const std::vector<Completion>& parts);

}  // namespace headrace
