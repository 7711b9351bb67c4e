#include "device/cuda/backend/flash_block.cuh"

namespace headrace::device::cuda {

bool launch_flash_keys(const Launch& launch, const void* arguments, cudaStream_t stream,
                       cudaError_t& result) {
  return dispatch_flash_keys(launch, LaunchFlash{launch, arguments, stream, result});
}

}  // namespace headrace::device::cuda
