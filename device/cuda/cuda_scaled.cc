#include <algorithm>

#include "device/cuda/cuda_kernels.h"
#include "device/cuda/cuda_launch.h"
#include "device/kernel_checks.h"

namespace headrace::device::cuda {

void CudaKernels::quantize(Stream& stream, const Matrix& source, const ScaledMatrix& target,
                           Workspace scratch) {
  check_quantize(source, target);
  check_scratch(scratch, kQuantizeScratch);
  const bool is_dense = source.stride == source.columns;
  QuantizeArguments arguments;
  arguments.source = source.data;
  arguments.codes = target.codes;
  arguments.maxima = reinterpret_cast<float*>(scratch.data);
  arguments.scale = target.scale;
  arguments.stride = source.stride;
  arguments.rows = is_dense ? 1 : source.rows;
  arguments.columns = is_dense ? source.rows * source.columns : source.columns;
  constexpr int64_t kLanes = QuantizeArguments::kLanes;
  const int64_t units = source.rows * source.columns / QuantizeArguments::kUnit;
  arguments.blocks = std::min(ceil_div(units, kLanes), kQuantizeParts);
  const auto post = [&](KernelId kernel, int64_t shared_bytes) {
    post_launch(
        gpu_, stream,
        make_launch(kernel, source.dtype, arguments.blocks, 1, uint32_t{kLanes}, shared_bytes),
        arguments);
  };
  post(KernelId::largest_magnitude, kLanes * int64_t{sizeof(float)});
  post(KernelId::quantize, 0);
}

void CudaKernels::matmul_scaled(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b,
                                const void* bias, const Matrix& c, bool accumulate,
                                Workspace scratch) {
  check_matmul_scaled(a, b, bias, c, accumulate);
  check_scratch(scratch, matmul_scaled_scratch(a, b, c));
  if (!matmul_.post_scaled(stream, a, b, bias, c, accumulate, scratch) && bias != nullptr) {
    add_bias(stream, c, bias);
  }
}

Bytes CudaKernels::matmul_scaled_scratch(const ScaledMatrix& a, const ScaledMatrix& b,
                                         const Matrix& c) const {
  check_matmul_scaled_shapes(a, b, c);
  return CudaMatmul::scratch(c);
}

}  // namespace headrace::device::cuda
