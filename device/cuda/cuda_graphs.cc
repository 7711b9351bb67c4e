#include "device/cuda/cuda_graphs.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/seconds.h"

namespace headrace::device::cuda {

namespace {

/// The GPU was idle between launches where it is done about when the CPU is.
constexpr double kBoundByLaunches = 1.25;
/// Device memory of a launch in a graph, at least: drivers take it in larger pieces, so that the
/// free memory often does not show it. NVIDIA's CUDASTF counts 10 KiB for a kernel; a product may
/// be two.
constexpr int64_t kBytesOfLaunch = 16 << 10;

}  // namespace

GraphCache::GraphCache(const Gpu& gpu, StreamHandle stream, const GraphOptions& options)
    : gpu_(gpu), stream_(stream), options_(options) {}

GraphCache::~GraphCache() {
  for (Known& known : known_) {
    retire(known);
  }
  note_idle();
  for (const EventHandle event : {begin_, end_}) {
    if (event != nullptr) {
      gpu_.log_failure(gpu_.api.event_destroy(event), "cudaEventDestroy");
    }
  }
}

void GraphCache::post(const LaunchList& list) {
  if (is_refused_ || static_cast<int64_t>(list.launches.size()) < options_.least_launches) {
    list.post();
    return;
  }
  ++now_;
  forget_old();
  judge();
  Known& known = find(list.key);
  ++known.times;
  if (known.times >= options_.captured_at && options_.use == GraphUse::on) {
    known.verdict = Verdict::is_graph;
  }
  if (known.verdict == Verdict::is_graph && post_graph(known, list)) {
    return;
  }
  const bool is_to_measure =
      known.verdict == Verdict::open && known.times >= options_.captured_at && measured_ == nullptr;
  if (is_to_measure && !is_refused_) {
    post_measured(known, list);
  } else {
    list.post();
  }
}

GraphCache::Known& GraphCache::find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) {
    known_.splice(known_.begin(), known_, found->second);
  } else {
    known_.emplace_front().key = key;
    by_key_.emplace(known_.front().key, known_.begin());
  }
  known_.front().last_came = now_;
  return known_.front();
}

void GraphCache::forget_old() {
  while (!known_.empty() && now_ - known_.back().last_came > options_.most_known) {
    Known& oldest = known_.back();
    retire(oldest);
    measured_ = measured_ == &oldest ? nullptr : measured_;
    by_key_.erase(oldest.key);
    known_.pop_back();
  }
}

void GraphCache::retire(Known& known) {
  if (known.graph != nullptr) {
    retired_.push_back({std::exchange(known.graph, nullptr), known.memory});
  }
}

void GraphCache::note_idle() {
  for (const Retired& retired : std::exchange(retired_, {})) {
    memory_ -= retired.memory;
    gpu_.log_failure(gpu_.api.graph_executable_destroy(retired.graph), "cudaGraphExecDestroy");
  }
}

/// False where nothing was posted.
bool GraphCache::post_graph(Known& known, const LaunchList& list) {
  if (known.graph == nullptr && !capture(known, list)) {
    return false;
  }
  if (is_ok(gpu_.api.graph_launch(known.graph, stream_), "cudaGraphLaunch")) {
    return true;
  }
  retire(known);
  return false;
}

bool GraphCache::capture(Known& known, const LaunchList& list) {
  if (memory_ >= options_.most_memory) {
    return false;
  }
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  if (!is_ok(gpu_.api.memory_info(&before, &total), "cudaMemGetInfo")) {
    return false;
  }
  const GraphHandle graph = record(list);
  if (graph == nullptr) {
    return false;
  }
  GraphExecHandle made = nullptr;
  const bool is_made = is_ok(gpu_.api.graph_instantiate(&made, graph), "cudaGraphInstantiate");
  gpu_.log_failure(gpu_.api.graph_destroy(graph), "cudaGraphDestroy");
  if (!is_made) {
    return false;
  }
  known.graph = made;
  known.memory = Bytes(static_cast<int64_t>(list.launches.size()) * kBytesOfLaunch);
  if (is_ok(gpu_.api.memory_info(&after, &total), "cudaMemGetInfo") && after < before) {
    known.memory = std::max(known.memory, Bytes(static_cast<int64_t>(before - after)));
  }
  memory_ += known.memory;
  return true;
}

/// Null where it is refused. Nothing runs.
GraphHandle GraphCache::record(const LaunchList& list) {
  if (!is_ok(gpu_.api.stream_begin_capture(stream_), "cudaStreamBeginCapture")) {
    return nullptr;
  }
  std::string failure;
  try {
    list.post();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  GraphHandle graph = nullptr;
  const Status ended = gpu_.api.stream_end_capture(stream_, &graph);
  if (failure.empty() && is_ok(ended, "cudaStreamEndCapture")) {
    return graph;
  }
  if (!failure.empty()) {
    refuse(failure);
  }
  if (graph != nullptr) {
    gpu_.log_failure(gpu_.api.graph_destroy(graph), "cudaGraphDestroy");
  }
  return nullptr;
}

void GraphCache::post_measured(Known& known, const LaunchList& list) {
  const auto is_there = [this](EventHandle& event) {
    return event != nullptr || is_ok(gpu_.api.timed_event_create(&event), "cudaEventCreate");
  };
  const bool is_begun = is_there(begin_) && is_there(end_) &&
                        is_ok(gpu_.api.event_record(begin_, stream_), "cudaEventRecord");
  const auto begin = std::chrono::steady_clock::now();
  list.post();
  posting_seconds_ = seconds_since(begin);
  if (is_begun && is_ok(gpu_.api.event_record(end_, stream_), "cudaEventRecord")) {
    measured_ = &known;
  }
}

void GraphCache::judge() {
  if (measured_ == nullptr) {
    return;
  }
  float milliseconds = 0;
  const Status status = gpu_.api.event_elapsed(&milliseconds, begin_, end_);
  if (status.code == kNotReady) {
    return;
  }
  if (is_ok(status, "cudaEventElapsedTime")) {
    const bool is_bound = milliseconds * 1e-3 <= kBoundByLaunches * posting_seconds_;
    measured_->verdict = is_bound ? Verdict::is_graph : Verdict::stays_as_it_is;
  }
  measured_ = nullptr;
}

bool GraphCache::is_ok(Status status, const char* call) {
  if (!status.is_ok()) {
    refuse(fmt::format("{}: {}", call, gpu_.api.describe(status)));
  }
  return status.is_ok();
}

void GraphCache::refuse(const std::string& reason) {
  is_refused_ = true;
  log_warning(
      "CUDA graphs are not used any more on {}: kernels are launched one by one, which small "
      "models notice ({})",
      gpu_.describe(), reason);
}

}  // namespace headrace::device::cuda
