#include <algorithm>

#include "device/cuda/cuda_kernels.h"
#include "device/cuda/cuda_launch.h"
#include "device/kernel_checks.h"

namespace headrace::device::cuda {

namespace {

bool are_on_16_bytes(const OptimizerArrays& arrays) {
  const void* const all[] = {arrays.master,  arrays.master_low, arrays.weight,
                             arrays.moment1, arrays.moment2,    arrays.gradient};
  return std::all_of(std::begin(all), std::end(all), is_on_16_bytes);
}

}  // namespace

void CudaKernels::optimizer_update(Stream& stream, const OptimizerStep& step,
                                   const OptimizerArrays& arrays, int32_t* not_finite) {
  check_optimizer_update(step, arrays, not_finite);
  OptimizerArguments arguments;
  arguments.step = step;
  arguments.arrays = arrays;
  arguments.not_finite = not_finite;
  arguments.vectorized = are_on_16_bytes(arrays);
  post_launch(gpu_, stream,
              make_launch(KernelId::optimizer_update, DType::f32,
                          ceil_div(arrays.count, OptimizerArguments::kPiece), 1, 256),
              arguments);
}

void CudaKernels::gradient_statistics(Stream& stream, const void* gradient, DType dtype,
                                      Elements count, double* sums) {
  check_gradient_statistics(gradient, dtype, count, sums);
  StatisticsArguments arguments;
  arguments.gradient = gradient;
  arguments.sums = sums;
  arguments.count = count.count();
  constexpr int64_t kLanes = StatisticsArguments::kLanes;
  post_launch(gpu_, stream,
              make_launch(KernelId::gradient_statistics, dtype, statistics_blocks(count), 1,
                          uint32_t{kLanes}, kLanes * int64_t{sizeof(double)}),
              arguments);
}

}  // namespace headrace::device::cuda
