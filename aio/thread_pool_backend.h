#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aio/posix_backend.h"

namespace headrace::aio {

/// Threads that call pread and pwrite, for kernels and sandboxes without io_uring. Owns its
/// threads; parts start in the order of submission and end in any order.
class ThreadPoolBackend : public PosixBackend {
 public:
  explicit ThreadPoolBackend(int threads);
  ThreadPoolBackend(const ThreadPoolBackend&) = delete;
  ThreadPoolBackend& operator=(const ThreadPoolBackend&) = delete;
  ~ThreadPoolBackend() override;

  void submit(std::span<const PartRequest> parts) override;
  size_t reap(std::span<PartCompletion> ready) override;
  void wake() override;
  std::string name() const override { return "thread pool"; }
  std::string features() const override;

 private:
  void work();
  void stop();

  std::mutex work_mutex_;
  std::condition_variable work_changed_;
  std::deque<PartRequest> waiting_;
  bool stopping_ = false;

  std::mutex ended_mutex_;
  std::condition_variable ended_changed_;
  std::deque<PartCompletion> ended_;
  bool woken_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace headrace::aio
