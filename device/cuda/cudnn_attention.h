#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/attention_trial.h"
#include "device/cuda/cudnn_plan.h"
#include "device/gpu.h"

namespace headrace::device::cuda {

/// Attention by cuDNN, where it is there, agrees with our kernels in a trial on this GPU, has the
/// same bits each time, and, if asked for, is faster. Each pass over each shape is decided once, at
/// the first question for its scratch, which comes before memory is planned; our kernels do the
/// rest. Thread-safe.
class CudnnAttention {
 public:
  /// Opens cuDNN unless our kernels do it all. GPU and device must outlive it.
  CudnnAttention(const Gpu& gpu, Device& device, const GpuOptions& options, const OpenCudnn& open);

  /// Above that of our kernels; 0 where they do both passes.
  Bytes extra_scratch(const AttentionShape& shape, DType dtype);
  /// Posts the pass, or returns false: it is for our kernels. `extra`: extra_scratch() bytes.
  bool post(Stream& stream, AttentionPass pass, const AttentionShape& shape, DType dtype,
            const AttentionArguments& arguments, std::byte* extra);
  std::string description() const;

 private:
  using Plan = std::shared_ptr<const CudnnPlan>;
  struct Choice {
    AttentionShape shape;
    DType dtype;
    Plan forward;  ///< null: our kernels
    Plan backward;
  };

  Choice choose(const AttentionShape& shape, DType dtype);
  Choice decide(const AttentionShape& shape, DType dtype);
  Plan try_pass(AttentionPass pass, const AttentionShape& shape, DType dtype, std::string& note);

  const Gpu& gpu_;
  Device& device_;
  GpuOptions options_;
  std::unique_ptr<CudnnContextOwner> context_;  ///< null: no cuDNN
  mutable std::mutex mutex_;
  std::vector<Choice> choices_;
  std::vector<std::string> notes_;
};

}  // namespace headrace::device::cuda
