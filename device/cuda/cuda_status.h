#pragma once

#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "device/cuda/cuda_api.h"

namespace headrace::device::cuda {

/// A call of CUDA or of cuBLASLt that failed; the text names call, operands and GPU.
class CudaError : public Error {
 public:
  explicit CudaError(const std::string& text) : Error(ErrorKind::io, text) {}
};

/// The API together with the GPU that is used, for everything that calls it. Immutable;
/// thread-safe.
struct Gpu {
  CudaApi& api;
  int ordinal;
  GpuFacts facts;

  /// "GPU 0 (NVIDIA H200, 0000:01:00.0)".
  std::string describe() const;
  /// Makes this GPU the calling thread's.
  void enter() const;

  /// Throws CudaError if `status` is an error; what(): the call with its operands, as in
  /// "cudaMemcpyAsync of 4096 bytes".
  template <class What>
  void check(Status status, const What& what) const {
    if (!status.is_ok()) [[unlikely]] {
      fail(status, what());
    }
  }
  /// The same without an exception, for destructors: a failure is logged, each error once.
  void log_failure(Status status, const char* call) const noexcept;

 private:
  [[noreturn]] void fail(Status status, const std::string& what) const;
};

}  // namespace headrace::device::cuda
