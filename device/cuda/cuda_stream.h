#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "base/completion.h"
#include "base/serial_worker.h"
#include "device/cuda/cuda_graphs.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/host_ranges.h"
#include "device/cuda/key_bytes.h"
#include "device/device.h"

namespace headrace::device::cuda {

/// A point in a CudaStream; owns the cudaEvent_t. `recorded` ends when CUDA's event was recorded in
/// CUDA's stream, which is later than record() where work for the host lies before it; it fails
/// with the stream's error.
class CudaEvent : public Event {
 public:
  CudaEvent(const Gpu& gpu, Completion recorded);
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() override;

  bool is_done() const override;
  void wait() const override;

  const Completion& recorded() const { return recorded_; }
  EventHandle handle() const { return handle_; }

 private:
  const Gpu& gpu_;
  EventHandle handle_ = nullptr;
  Completion recorded_;
};

/// One CUDA stream and one host thread.
///
/// Work is posted straight to CUDA, by the caller, as long as CUDA can do it on its own. What needs
/// the host in the middle (a task of run_on_host, a copy of pageable memory, an event that is not
/// recorded yet) goes to the thread: it waits for the stream, does it, and posts what came behind
/// it, which was queued meanwhile. So no caller ever waits, nothing is posted after an error, and
/// tasks of different streams run side by side. (Host functions of CUDA may be run one at a time,
/// may not call CUDA and are left out after an error.) Completions end on the same thread.
///
/// Where graphs are used, what is only work for the device is held back until something else is
/// posted or recorded, and goes then as one list, which GraphCache may replay.
///
/// The destructor runs what is queued and drops errors that nobody asked for.
class CudaStream : public Stream {
 public:
  /// `ranges` says which host memory is registered. Both must outlive the stream.
  CudaStream(const Gpu& gpu, const HostRanges& ranges, std::string name,
             const GraphOptions& graphs = {});
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override;

  void copy_async(void* target, const void* source, Bytes size) override;
  void fill_zero_async(void* target, Bytes size) override;
  void wait(const EventRef& event) override;
  EventRef record() override;
  Completion record_completion() override;
  void run_on_host(std::function<void()> task) override;
  void synchronize() override;

  /// Calls work(stream handle), which posts to CUDA, after what was posted before: at once, or on
  /// the stream's thread where that has something to do before or the work `needs_thread`, because
  /// it waits. An exception is the stream's error.
  template <class Work>
  void post(Work work, bool needs_thread = false) {
    in_turn([this, work = std::move(work)] { run(work); }, needs_thread);
  }

  /// Posts call(this stream, parts...), which gives the device work and nothing else: launches,
  /// products, fills, copies within the device. It may come as part of a CUDA graph; all other work
  /// may not, and goes through post().
  template <class Call, class... Parts>
  void post_to_device(Call /*call*/, const Parts&... parts) {
    static_assert(std::is_empty_v<Call>, "only parts are compared before a graph is replayed");
    if (!graphs_) {
      post([this, parts...](StreamHandle) { Call()(std::as_const(*this), parts...); });
      return;
    }
    const void* const id = &kIdOf<Call, Parts...>;
    append_bytes(held_back_.key, id);
    (append_bytes(held_back_.key, parts), ...);
    held_back_.launches.emplace_back([this, parts...] { Call()(std::as_const(*this), parts...); });
    if (held_back_.launches.size() >= kMostHeldBack) {
      post_held_back();
    }
  }

  // For calls of post_to_device().
  const Gpu& gpu() const { return gpu_; }
  const std::string& name() const { return name_; }
  StreamHandle handle() const { return handle_; }

 private:
  static constexpr size_t kMostHeldBack = 512;
  /// Its address tells calls apart.
  template <class Call, class... Parts>
  static constexpr char kIdOf = 0;

  template <class Step>
  void in_turn(Step step, bool needs_thread) {
    post_held_back();
    pass_on(std::move(step), needs_thread);
  }

  template <class Step>
  void pass_on(Step step, bool needs_thread) {
    if (needs_thread || must_queue()) {
      queue(std::move(step));
    } else {
      step();
    }
  }

  void post_held_back();
  bool must_queue() const;
  void queue(std::function<void()> step);
  void end_step();
  std::exception_ptr error() const;
  void set_error(std::exception_ptr error);
  void drain();
  bool is_device_side_copy(const void* target, const void* source, Bytes size) const;

  template <class Work>
  void run(const Work& work) {
    if (error()) {
      return;
    }
    try {
      gpu_.enter();
      work(handle_);
    } catch (...) {
      set_error(std::current_exception());
    }
  }

  const Gpu& gpu_;
  const HostRanges& ranges_;
  std::string name_;
  CudaEvent drained_;  ///< of the stream's thread
  StreamHandle handle_ = nullptr;
  LaunchList held_back_;
  std::unique_ptr<GraphCache> graphs_;  ///< used in turn; null where they are off
  mutable std::mutex mutex_;
  int64_t queued_ = 0;        ///< steps that must run before the caller may post itself
  std::exception_ptr error_;  ///< the first one
  SerialWorker worker_;       ///< last: it drains before the rest goes
};

}  // namespace headrace::device::cuda
