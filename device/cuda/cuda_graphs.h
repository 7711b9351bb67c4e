#pragma once

#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/cuda/cuda_status.h"
#include "device/gpu.h"

namespace headrace::device::cuda {

/// Launches that come one after the other, with nothing but work of the device between them.
struct LaunchList {
  std::vector<std::function<void()>> launches;
  /// All that the launches consist of: lists with the same key do the same.
  std::string key;

  void post() const {
    for (const auto& launch : launches) {
      launch();
    }
  }
};

/// Posts the launch lists of one stream, as CUDA graphs where the same list has come before. Graphs
/// are captured from the launches themselves and found by the list's whole key, so a replay cannot
/// differ from its launches. Lists that have not come for a while are forgotten, the one longest
/// unused first; while graphs take as much memory as they may, no new ones are made. Where CUDA
/// refuses anything, everything is launched one by one from then on, which is logged once. Used by
/// one thread at a time.
class GraphCache {
 public:
  GraphCache(const Gpu& gpu, StreamHandle stream, const GraphOptions& options);
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;
  /// The stream has run everything.
  ~GraphCache();

  /// CudaError where a launch fails.
  void post(const LaunchList& list);
  /// The stream has run everything: graphs that are not needed any more can go.
  void note_idle();

 private:
  enum class Verdict : uint8_t { open, is_graph, stays_as_it_is };
  struct Known {
    std::string key;
    int64_t last_came = 0;
    int64_t times = 0;
    Verdict verdict = Verdict::open;
    GraphExecHandle graph = nullptr;
    Bytes memory;
  };

  struct Retired {
    GraphExecHandle graph = nullptr;
    Bytes memory;
  };

  Known& find(const std::string& key);
  void forget_old();
  void retire(Known& known);
  bool post_graph(Known& known, const LaunchList& list);
  bool capture(Known& known, const LaunchList& list);
  GraphHandle record(const LaunchList& list);
  void post_measured(Known& known, const LaunchList& list);
  void judge();
  bool is_ok(Status status, const char* call);
  void refuse(const std::string& reason);

  const Gpu& gpu_;
  StreamHandle stream_;
  GraphOptions options_;
  bool is_refused_ = false;
  int64_t now_ = 0;         ///< lists that have come
  std::list<Known> known_;  ///< the one that came last in front
  std::unordered_map<std::string_view, std::list<Known>::iterator> by_key_;
  Bytes memory_;                  ///< of graphs, those in `retired_` counted
  std::vector<Retired> retired_;  ///< may be running still
  // One list at a time is measured.
  EventHandle begin_ = nullptr;
  EventHandle end_ = nullptr;
  Known* measured_ = nullptr;
  double posting_seconds_ = 0;  ///< of the CPU
};

}  // namespace headrace::device::cuda
