#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "base/completion.h"
#include "base/serial_worker.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace headrace::device::testing {

// Codes of CUDA that the fake answers with.
inline constexpr int kInvalidValue = 1;
inline constexpr int kInvalidHandle = 400;
inline constexpr int kNotSupported = 801;
inline constexpr int kCaptureUnsupported = 900;

inline cuda::Status runtime(int code) {
  return {cuda::Status::Library::runtime, code};
}

struct FakeCuda::Capture {
  std::thread::id thread;
  Nodes nodes;
  bool is_invalid = false;
};

struct FakeCuda::Executable {
  Nodes nodes;
  int64_t memory = 0;
  std::atomic<int64_t> in_flight = 0;
};

struct FakeCuda::Stream {
  explicit Stream(int on_device) : device(on_device), worker("fake-cuda") {}
  int device;
  std::optional<Capture> capture;  ///< of the fake's mutex
  SerialWorker worker;
};

struct FakeCuda::Event {
  std::mutex mutex;
  Completion reached = Completion::done();  ///< never recorded counts as reached
  bool is_timed = false;
  bool is_captured = false;  ///< was last recorded in a stream in capture
  std::optional<std::chrono::steady_clock::time_point> time;  ///< of being reached
};

template <class Work>
void FakeCuda::use_memory(const Work& work) {
  protect(+1);
  work();
  protect(-1);
}

}  // namespace headrace::device::testing
