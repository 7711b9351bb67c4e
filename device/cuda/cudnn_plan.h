#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "device/cuda/cuda_status.h"
#include "device/cuda/cudnn_graph.h"
#include "device/cuda/launch.h"
#include "device/kernels.h"

/// Attention as graphs of cuDNN.
namespace headrace::device::cuda {

enum class AttentionPass : uint8_t { forward, backward };

/// Causal attention over everything before a position; log_sum_exp is of scaled scores, in base e,
/// as Kernels has it. In backward the gradients of the scores pass through the workspace, quadratic
/// in seq: dq is then a product like the others, and its sum has an order; in the other form of
/// this graph blocks add to it as they come.
CudnnGraph attention_graph(CudnnApi& cudnn, const AttentionShape& shape, DType dtype,
                           AttentionPass pass);

/// Why cuDNN is not to be asked for this attention; empty: it is.
std::string cudnn_refusal(const AttentionShape& shape, DType dtype);
/// Whether its kernels can read at these addresses.
bool suits_cudnn(const AttentionArguments& arguments);

/// A handle of cuDNN on one GPU.
class CudnnContextOwner {
 public:
  CudnnContextOwner(const Gpu& gpu, std::shared_ptr<CudnnApi> cudnn);
  CudnnContextOwner(const CudnnContextOwner&) = delete;
  CudnnContextOwner& operator=(const CudnnContextOwner&) = delete;
  ~CudnnContextOwner();

  CudnnApi& api() const { return *cudnn_; }
  CudnnHandle handle() const { return handle_; }
  std::mutex& mutex() { return mutex_; }

 private:
  std::shared_ptr<CudnnApi> cudnn_;
  CudnnHandle handle_ = nullptr;
  std::mutex mutex_;  ///< of the handle
};

/// One pass over one shape, ready to run. Thread-safe.
class CudnnPlan {
 public:
  /// The first of cuDNN's ways that says it is deterministic and needs no more than `most`
  /// workspace. CudaError, with the reason, where there is none.
  CudnnPlan(CudnnContextOwner& context, const AttentionShape& shape, DType dtype,
            AttentionPass pass, Bytes most);

  /// 256-byte aligned.
  Bytes workspace() const { return workspace_; }
  /// Posts to the stream; operands as of Kernels, addresses as suits_cudnn() wants them.
  void run(StreamHandle stream, const AttentionArguments& arguments, void* workspace) const;

 private:
  CudnnContextOwner& context_;
  AttentionPass pass_;
  std::optional<CudnnObject> plan_;
  Bytes workspace_;
};

}  // namespace headrace::device::cuda
