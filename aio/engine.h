#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aio/backend.h"
#include "aio/depth_tuner.h"
#include "aio/io.h"
#include "aio/part_scheduler.h"

namespace headrace::aio {

inline constexpr int kDepthMax = 4096;
inline constexpr int kAdaptiveDepthMin = 2;
inline constexpr int kAdaptiveDepthGrowth = 16;  ///< at most so many times where it began

/// Parts that an engine with these options may have in flight at once: what its backend must hold.
int largest_depth(const IoEngineOptions& options);

/// An engine over a given backend, which it then owns; IoEngine::create chooses one and calls this.
std::unique_ptr<IoEngine> create_engine_with_backend(std::unique_ptr<Backend> backend,
                                                     const IoEngineOptions& options);

/// The engine: requests are posted by any thread and taken by its own thread, which submits parts
/// to the backend, reaps their ends into a list, refills the backend, and only then ends
/// completions. The backend goes down on that thread too, because some give their memory back
/// only there.
class Engine final : public IoEngine {
 public:
  Engine(std::unique_ptr<Backend> backend, const IoEngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() override;

  FileId open(const std::string& path, bool create) override;
  void allocate(FileId file, Bytes size) override;
  /// Waits for the requests on the file; not from a callback while there are any.
  void close(FileId file) override;
  void sync(FileId file) override;
  void register_memory(std::span<std::byte> memory) override;
  Completion submit(const IoRequest& request) override;
  Bytes alignment() const override;
  std::string description() const override;
  IoStatistics statistics() const override;

 private:
  using Clock = std::chrono::steady_clock;
  /// Measures the time with at least one part of an operation in flight.
  struct BusyClock {
    bool is_busy = false;
    Clock::time_point since;
    double seconds = 0;
    void note(bool busy_now);
    double total() const;
  };
  class Use;

  int open_handle(const std::string& path, bool create, bool& direct);
  std::shared_ptr<OpenFile>& find(FileId file);
  std::shared_ptr<OpenFile> begin_use(FileId file);
  void end_use(OpenFile& file);
  void check_request(const IoRequest& request, const OpenFile& file) const;
  /// Runs `call` on the engine's thread and waits for it.
  void call_on_thread(const std::function<void()>& call);
  template <class Post>
  void post(const Post& post);

  void run();
  void loop();
  bool take_posted();
  void submit_parts();
  void tune_depth();
  void reap_parts();
  void note_busy();  ///< with the lock held
  void end_requests();
  void close_files();
  void fail_everything(const std::exception_ptr& error);

  const IoEngineOptions options_;
  std::unique_ptr<Backend> backend_;  ///< null once the thread has ended in peace

  mutable std::mutex mutex_;
  std::condition_variable uses_changed_;
  std::vector<std::shared_ptr<OpenFile>> files_;  ///< by FileId; null when closed, never reused
  std::vector<std::shared_ptr<PendingRequest>> posted_;
  std::vector<std::function<void()>> calls_;
  bool is_waiting_ = false;  ///< the thread may be in reap(): wake it
  /// By operation: whether a new request could go out at once. Where not, the end of a part in
  /// flight, which is what it waits for, wakes the thread anyway.
  std::array<bool, 2> can_send_{true, true};
  bool stopping_ = false;
  std::exception_ptr broken_;  ///< set when the backend is lost
  IoStatistics statistics_;
  BusyClock read_clock_;
  BusyClock write_clock_;

  // Of the engine's thread.
  PartScheduler scheduler_;
  std::optional<DepthTuner> tuner_;  ///< with adaptive_depth
  std::vector<PartCompletion> ready_;
  std::vector<std::shared_ptr<PendingRequest>> taken_;
  PartScheduler::Requests ended_;

  std::thread thread_;
};

}  // namespace headrace::aio
