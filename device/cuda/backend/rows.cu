#include "device/cuda/backend/launch_kernel.cuh"
#include "device/cuda/kernels/dispatch.inl.h"

namespace headrace::device::cuda {

bool launch_rows(const Launch& launch, const void* arguments, cudaStream_t stream,
                 cudaError_t& result) {
  return dispatch_rows(launch, LaunchKernel<kMostThreads>{launch, arguments, stream, result});
}

}  // namespace headrace::device::cuda
