#pragma once

#include <cstdint>
#include <limits>

#include "base/check.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.h"
#include "device/kernels.h"

/// From checked arguments to launches: what the parts of CudaKernels share.
namespace headrace::device::cuda {

/// Of Kernels' callers; InternalError for the stream of another device.
CudaStream& cuda_stream(Stream& stream);

/// Where kernels move 16 bytes at a time; also a null pointer.
inline bool is_on_16_bytes(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

/// A grid has no more: it is laid out in CUDA's first dimension, the only one that takes more than
/// 65535.
inline constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();

/// A grid of x by y blocks; nothing is launched where one of them is 0. InternalError for more than
/// kMostBlocks.
Launch make_launch(KernelId kernel, DType dtype, int64_t x, int64_t y, uint32_t threads,
                   int64_t shared_bytes = 0);

/// Threads for a row of this many elements: no more than it keeps busy.
uint32_t threads_for(int64_t columns);

/// Posts the launch with its argument structure.
template <class Arguments>
void post_launch(const Gpu& gpu, Stream& stream, const Launch& launch, const Arguments& arguments) {
  if (launch.grid_x == 0 || launch.grid_y == 0) {
    return;
  }
  CudaStream& ours = cuda_stream(stream);
  HR_CHECK(&ours.gpu() == &gpu, "kernels of {} were posted to a stream of {}", gpu.describe(),
           ours.gpu().describe());
  const auto call = [](const CudaStream& on, const Launch& what, const Arguments& with) {
    on.gpu().check(on.gpu().api.launch(what, &with, on.handle()), [&] {
      return fmt::format("launch of kernel {} with {} x {} blocks of {} threads, {} bytes shared",
                         static_cast<int>(what.kernel), what.grid_x, what.grid_y, what.threads,
                         what.shared_bytes);
    });
  };
  ours.post_to_device(call, launch, arguments);
}

/// Launches an elementwise kernel; `columns` and `rows` are those of all operands.
void post_elementwise(const Gpu& gpu, Stream& stream, KernelId kernel, DType dtype,
                      DType target_dtype, ElementwiseArguments arguments);

/// Of both passes; backward adds the gradients.
AttentionArguments attention_arguments(const AttentionShape& shape, const void* q, const void* k,
                                       const void* v, const void* out, float* log_sum_exp);
/// The attention of cuda_attention.cc; arguments as of Kernels, checked by the caller.
void post_attention_forward(const Gpu& gpu, Stream& stream, const AttentionShape& shape,
                            DType dtype, AttentionArguments arguments);
void post_attention_backward(const Gpu& gpu, Stream& stream, const AttentionShape& shape,
                             DType dtype, AttentionArguments arguments);
/// Of our kernels: delta.
Bytes attention_scratch_bytes(const AttentionShape& shape);

}  // namespace headrace::device::cuda
