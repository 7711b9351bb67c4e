#include "device/cuda/backend/flash_block.cuh"

namespace headrace::device::cuda {

bool launch_flash_forward(const Launch& launch, const void* arguments, cudaStream_t stream,
                          cudaError_t& result) {
  return dispatch_flash_forward(launch, LaunchFlash{launch, arguments, stream, result});
}

}  // namespace headrace::device::cuda
