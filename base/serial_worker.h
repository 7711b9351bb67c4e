#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace headrace {

/// One thread that runs posted tasks in order. Owns its thread; the destructor runs what is
/// queued, then joins. post() may be called from any thread, also from a task.
class SerialWorker {
 public:
  /// `name` is shown in debuggers and profilers (15 characters at most are kept).
  explicit SerialWorker(std::string name);
  SerialWorker(const SerialWorker&) = delete;
  SerialWorker& operator=(const SerialWorker&) = delete;
  ~SerialWorker();

  /// Tasks must not throw; one that does ends the process with its message.
  void post(std::function<void()> task);
  /// Blocks until all tasks posted before this call have run. Not from a task.
  void drain();

 private:
  void run();

  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace headrace
