#include "device/cuda/backend/launch_kernel.cuh"
#include "device/cuda/kernels/dispatch.inl.h"

namespace headrace::device::cuda {

bool launch_optimizer(const Launch& launch, const void* arguments, cudaStream_t stream,
                      cudaError_t& result) {
  return dispatch_optimizer(launch, LaunchKernel<256>{launch, arguments, stream, result});
}

}  // namespace headrace::device::cuda
