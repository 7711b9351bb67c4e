#include "device/cuda/cuda_launch.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::device::cuda {

namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kElementwiseThreads = 256;

bool are_rows_on_16_bytes(const void* data, int64_t stride, DType dtype, int64_t rows) {
  const int64_t bytes = size_of(dtype).count();
  return is_on_16_bytes(data) && (rows == 1 || stride * bytes % 16 == 0);
}

}  // namespace

CudaStream& cuda_stream(Stream& stream) {
  auto* const ours = dynamic_cast<CudaStream*>(&stream);
  HR_CHECK(ours != nullptr, "kernels of the CUDA device were posted to a stream of another kind");
  return *ours;
}

Launch make_launch(KernelId kernel, DType dtype, int64_t x, int64_t y, uint32_t threads,
                   int64_t shared_bytes) {
  HR_CHECK(x >= 0 && y >= 0 && (y == 0 || x <= kMostBlocks / y),
           "kernel {} would need {} x {} blocks", static_cast<int>(kernel), x, y);
  Launch launch;
  launch.kernel = kernel;
  launch.dtype = dtype;
  launch.target_dtype = dtype;
  launch.grid_x = static_cast<uint32_t>(x);
  launch.grid_y = static_cast<uint32_t>(y);
  launch.threads = threads;
  launch.shared_bytes = static_cast<uint32_t>(shared_bytes);
  return launch;
}

uint32_t threads_for(int64_t columns) {
  const auto wanted = static_cast<uint32_t>(std::clamp<int64_t>(columns / 4, 1, kMostThreads));
  return (wanted + kWarp - 1) / kWarp * kWarp;
}

void post_elementwise(const Gpu& gpu, Stream& stream, KernelId kernel, DType dtype,
                      DType target_dtype, ElementwiseArguments arguments) {
  struct Operand {
    const void* data;
    int64_t& stride;
    DType dtype;
  };
  const Operand operands[] = {{arguments.a, arguments.a_stride, dtype},
                              {arguments.b, arguments.b_stride, dtype},
                              {arguments.c, arguments.c_stride, dtype},
                              {arguments.out, arguments.out_stride, target_dtype},
                              {arguments.out2, arguments.out2_stride, target_dtype}};
  const auto all = [&](const auto& holds) {
    return std::all_of(std::begin(operands), std::end(operands), [&](const Operand& operand) {
      return operand.data == nullptr || holds(operand);
    });
  };
  // Dense rows are one long row.
  if (arguments.rows > 1 &&
      all([&](const Operand& operand) { return operand.stride == arguments.columns; })) {
    arguments.columns *= arguments.rows;
    arguments.rows = 1;
  }
  arguments.vectorized = all([&](const Operand& operand) {
    return are_rows_on_16_bytes(operand.data, operand.stride, operand.dtype, arguments.rows);
  });
  const int64_t pieces = ceil_div(arguments.columns, ElementwiseArguments::kPieceColumns);
  Launch launch = make_launch(kernel, dtype, arguments.rows * pieces, 1,
                              std::min(kElementwiseThreads, threads_for(arguments.columns)));
  launch.target_dtype = target_dtype;
  post_launch(gpu, stream, launch, arguments);
}

}  // namespace headrace::device::cuda
