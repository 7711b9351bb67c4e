#include "device/cuda/backend/flash_block.cuh"

namespace headrace::device::cuda {

bool launch_flash_queries(const Launch& launch, const void* arguments, cudaStream_t stream,
                          cudaError_t& result) {
  return dispatch_flash_queries(launch, LaunchFlash{launch, arguments, stream, result});
}

}  // namespace headrace::device::cuda
