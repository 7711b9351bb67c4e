#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_stream.h"

namespace headrace::device::testing {

using cuda::GraphExecHandle;
using cuda::GraphHandle;
using cuda::Status;
using cuda::StreamHandle;

namespace {

constexpr int kIllegalState = 401;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureWrongThread = 908;

}  // namespace

Status FakeCuda::enter_outside_capture(const char* call) {
  const Status entered = enter(call);
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, stream] : streams_) {
    if (stream->capture && stream->capture->thread == std::this_thread::get_id()) {
      stream->capture->is_invalid = true;
      return runtime(kCaptureUnsupported);
    }
  }
  return entered;
}

bool FakeCuda::is_in_capture(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  return stream.capture.has_value();
}

Status FakeCuda::submit(Stream& stream, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!stream.capture) {
    stream.worker.post(std::move(work));
    return runtime(0);
  }
  if (stream.capture->is_invalid) {
    return runtime(kCaptureInvalidated);
  }
  stream.capture->nodes.push_back(std::move(work));
  return runtime(0);
}

Status FakeCuda::refuse_in_capture(Stream& stream, int code) {
  const std::lock_guard lock(mutex_);
  if (!stream.capture) {
    return runtime(0);
  }
  stream.capture->is_invalid = true;
  return runtime(code);
}

Status FakeCuda::stream_begin_capture(StreamHandle stream) {
  if (const Status failed = enter("stream_begin_capture"); !failed.is_ok()) {
    return failed;
  }
  Stream* const found = find(stream);
  if (found == nullptr || !options_.can_capture) {
    return runtime(found == nullptr ? kInvalidHandle : kNotSupported);
  }
  if (stream == nullptr) {
    return runtime(kCaptureUnsupported);  // the default stream
  }
  const std::lock_guard lock(mutex_);
  if (found->capture) {
    return runtime(kIllegalState);
  }
  found->capture.emplace().thread = std::this_thread::get_id();
  return runtime(0);
}

/// Takes the stream out of its capture also where it fails.
Status FakeCuda::stream_end_capture(StreamHandle stream, GraphHandle* graph) {
  const Status entered = enter("stream_end_capture");
  *graph = nullptr;
  Stream* const found = find(stream);
  if (found == nullptr) {
    return runtime(kInvalidHandle);
  }
  const std::lock_guard lock(mutex_);
  if (!found->capture) {
    return runtime(kIllegalState);
  }
  if (found->capture->thread != std::this_thread::get_id()) {
    return runtime(kCaptureWrongThread);
  }
  const Capture ended = *std::exchange(found->capture, std::nullopt);
  if (ended.is_invalid || !entered.is_ok()) {
    return ended.is_invalid ? runtime(kCaptureInvalidated) : entered;
  }
  auto made = std::make_unique<Nodes>(ended.nodes);
  *graph = reinterpret_cast<GraphHandle>(made.get());
  graphs_.emplace(*graph, std::move(made));
  return runtime(0);
}

Status FakeCuda::graph_instantiate(GraphExecHandle* executable, GraphHandle graph) {
  if (const Status failed = enter_outside_capture("graph_instantiate"); !failed.is_ok()) {
    return failed;
  }
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) {
    return runtime(kInvalidValue);
  }
  auto made = std::make_unique<Executable>();
  made->nodes = *found->second;
  made->memory = static_cast<int64_t>(made->nodes.size()) * options_.node_bytes;
  if (used_ + made->memory > options_.memory) {
    return runtime(cuda::kOutOfMemory);
  }
  used_ += made->memory;
  *executable = reinterpret_cast<GraphExecHandle>(made.get());
  executables_.emplace(*executable, std::move(made));
  return runtime(0);
}

Status FakeCuda::graph_destroy(GraphHandle graph) {
  const Status entered = enter("graph_destroy");
  const std::lock_guard lock(mutex_);
  return graphs_.erase(graph) == 1 ? entered : runtime(kInvalidValue);
}

/// CUDA also takes a graph within a capture; the fake does not.
Status FakeCuda::graph_launch(GraphExecHandle executable, StreamHandle stream) {
  if (const Status failed = enter("graph_launch"); !failed.is_ok()) {
    return failed;
  }
  Stream* const found = find(stream);
  const std::lock_guard lock(mutex_);
  const auto launched = executables_.find(executable);
  if (found == nullptr || launched == executables_.end()) {
    return runtime(found == nullptr ? kInvalidHandle : kInvalidValue);
  }
  if (found->capture) {
    return runtime(kNotSupported);
  }
  Executable& running = *launched->second;
  ++running.in_flight;
  found->worker.post([&running] {
    for (const auto& node : running.nodes) {
      node();
    }
    --running.in_flight;
  });
  return runtime(0);
}

/// CUDA does not say what becomes of one that runs; here it is an error, and it stays.
Status FakeCuda::graph_executable_destroy(GraphExecHandle executable) {
  const Status entered = enter("graph_executable_destroy");
  const std::lock_guard lock(mutex_);
  const auto found = executables_.find(executable);
  if (found == executables_.end() || found->second->in_flight > 0) {
    return runtime(kInvalidValue);
  }
  used_ -= found->second->memory;
  executables_.erase(found);
  return entered;
}

}  // namespace headrace::device::testing
