#include "device/cuda/cuda_stream.h"

#include "base/check.h"
#include "base/log.h"

namespace headrace::device::cuda {

namespace {

constexpr auto copy_once = [](const CudaStream& stream, void* target, const void* source,
                              Bytes size) {
  const auto count = static_cast<size_t>(size.count());
  stream.gpu().check(stream.gpu().api.copy(target, source, count, stream.handle()), [&] {
    return fmt::format("cudaMemcpyAsync of {} bytes from {} to {} in \"{}\"", count,
                       fmt::ptr(source), fmt::ptr(target), stream.name());
  });
};

}  // namespace

CudaEvent::CudaEvent(const Gpu& gpu, Completion recorded)
    : gpu_(gpu), recorded_(std::move(recorded)) {
  gpu_.enter();
  gpu_.check(gpu_.api.event_create(&handle_), [] { return std::string("cudaEventCreate"); });
}

CudaEvent::~CudaEvent() {
  gpu_.log_failure(gpu_.api.event_destroy(handle_), "cudaEventDestroy");
}

bool CudaEvent::is_done() const {
  if (!recorded_.is_done()) {
    return false;
  }
  // Failed before it was recorded, or after: either way nothing is left to wait for.
  return gpu_.api.event_query(handle()).code != kNotReady;
}

void CudaEvent::wait() const {
  recorded_.wait();
  gpu_.check(gpu_.api.event_synchronize(handle()),
             [] { return std::string("cudaEventSynchronize"); });
}

CudaStream::CudaStream(const Gpu& gpu, const HostRanges& ranges, std::string name,
                       const GraphOptions& graphs)
    : gpu_(gpu),
      ranges_(ranges),
      name_(name),
      drained_(gpu, Completion::done()),
      worker_(std::move(name)) {
  gpu_.check(gpu_.api.stream_create(&handle_),
             [&] { return fmt::format("cudaStreamCreate of \"{}\"", name_); });
  if (graphs.use != GraphUse::off) {
    graphs_ = std::make_unique<GraphCache>(gpu_, handle_, graphs);
  }
}

CudaStream::~CudaStream() {
  post_held_back();
  worker_.drain();
  gpu_.log_failure(gpu_.api.set_device(gpu_.ordinal), "cudaSetDevice");
  try {
    drain();
  } catch (const CudaError& error) {
    log_debug("stream \"{}\" ends with an error that nobody has asked for: {}", name_,
              error.what());
  }
  graphs_.reset();
  gpu_.log_failure(gpu_.api.stream_destroy(handle_), "cudaStreamDestroy");
}

void CudaStream::post_held_back() {
  if (held_back_.launches.empty()) {
    return;
  }
  const auto list = std::make_shared<const LaunchList>(std::exchange(held_back_, {}));
  pass_on([this, list] { run([&](StreamHandle) { graphs_->post(*list); }); }, false);
}

bool CudaStream::must_queue() const {
  const std::lock_guard lock(mutex_);
  return queued_ > 0;
}

/// Runs `step` on the thread, and everything posted after it too, until it has run.
void CudaStream::queue(std::function<void()> step) {
  {
    const std::lock_guard lock(mutex_);
    ++queued_;
  }
  worker_.post([this, step = std::move(step)] {
    step();
    end_step();
  });
}

void CudaStream::end_step() {
  const std::lock_guard lock(mutex_);
  --queued_;
}

std::exception_ptr CudaStream::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void CudaStream::set_error(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) {
    error_ = std::move(error);
  }
}

/// Waits until CUDA has run what was posted to it, asleep: cudaStreamSynchronize would take a core
/// for as long as that is.
void CudaStream::drain() {
  gpu_.check(gpu_.api.event_record(drained_.handle(), handle_),
             [&] { return fmt::format("cudaEventRecord at the end of \"{}\"", name_); });
  drained_.wait();
  if (graphs_) {
    graphs_->note_idle();
  }
}

void CudaStream::run_on_host(std::function<void()> task) {
  const auto work = [this, task = std::move(task)](StreamHandle) {
    drain();
    task();
  };
  post(work, true);
}

/// Whether CUDA copies without the host: no side is pageable.
bool CudaStream::is_device_side_copy(const void* target, const void* source, Bytes size) const {
  const auto is_reachable = [&](const void* address) {
    return ranges_.device.contains(address, size) || ranges_.registered.contains(address, size);
  };
  return is_reachable(target) && is_reachable(source);
}

void CudaStream::copy_async(void* target, const void* source, Bytes size) {
  HR_CHECK(size.count() >= 0 && (size.count() == 0 || (target != nullptr && source != nullptr)),
           "copy of {} bytes from {} to {}", size, fmt::ptr(source), fmt::ptr(target));
  if (size.count() == 0) {
    return;
  }
  if (ranges_.device.contains(target, size) && ranges_.device.contains(source, size)) {
    post_to_device(copy_once, target, source, size);
    return;
  }
  const bool needs_host = !is_device_side_copy(target, source, size);
  const auto copy = [this, target, source, size, needs_host](StreamHandle) {
    copy_once(*this, target, source, size);
    if (needs_host) {
      drain();  // only now has the host's side been used
    }
  };
  post(copy, needs_host);
}

void CudaStream::fill_zero_async(void* target, Bytes size) {
  HR_CHECK(size.count() >= 0 && (size.count() == 0 || target != nullptr),
           "zero fill of {} bytes at {}", size, fmt::ptr(target));
  if (size.count() == 0) {
    return;
  }
  const auto fill = [](const CudaStream& stream, void* zeroed, Bytes bytes) {
    const auto count = static_cast<size_t>(bytes.count());
    stream.gpu().check(stream.gpu().api.fill(zeroed, 0, count, stream.handle()), [&] {
      return fmt::format("cudaMemsetAsync of {} bytes at {} in \"{}\"", count, fmt::ptr(zeroed),
                         stream.name());
    });
  };
  post_to_device(fill, target, size);
}

void CudaStream::wait(const EventRef& event) {
  HR_CHECK(event != nullptr, "stream asked to wait for no event");
  const auto* const ours = dynamic_cast<const CudaEvent*>(event.get());
  if (ours == nullptr) {
    run_on_host([event] { event->wait(); });  // of another device
    return;
  }
  const auto wait_for_it = [this, event, ours](StreamHandle stream) {
    ours->recorded().wait();  // fails where the other stream has failed before
    gpu_.check(gpu_.api.stream_wait_event(stream, ours->handle()),
               [&] { return fmt::format("cudaStreamWaitEvent in \"{}\"", name_); });
  };
  post(wait_for_it, !ours->recorded().is_done());
}

EventRef CudaStream::record() {
  const auto promise = std::make_shared<Promise>();
  auto event = std::make_shared<const CudaEvent>(gpu_, promise->completion());
  // Where the stream has failed, run() leaves `record_it` out: the promise must end all the same.
  const auto record_it = [this, promise, event] {
    const auto work = [&](StreamHandle stream) {
      gpu_.check(gpu_.api.event_record(event->handle(), stream),
                 [&] { return fmt::format("cudaEventRecord in \"{}\"", name_); });
    };
    run(work);
    if (const std::exception_ptr failed = error()) {
      promise->set_failed(failed);
    } else {
      promise->set_done();
    }
  };
  in_turn(record_it, false);
  return event;
}

Completion CudaStream::record_completion() {
  const auto promise = std::make_shared<Promise>();
  const EventRef event = record();
  worker_.post([this, promise, event] {
    try {
      event->wait();
      promise->set_done();
    } catch (...) {
      set_error(std::current_exception());
      promise->set_failed(error());
    }
  });
  return promise->completion();
}

void CudaStream::synchronize() {
  record_completion().wait();
}

}  // namespace headrace::device::cuda
