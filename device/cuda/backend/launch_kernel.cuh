#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/backend/cuda_block.cuh"
#include "device/cuda/launch.h"

namespace headrace::device::cuda {

/// `parameters`: pointers to those of the entry.
inline cudaError_t launch_entry(const void* entry, uint32_t most_threads, const Launch& launch,
                                dim3 grid, void** parameters, cudaStream_t stream) {
  constexpr uint32_t kWithoutOptIn = 48 << 10;
  if (launch.threads > most_threads) {
    return cudaErrorInvalidConfiguration;
  }
  if (launch.shared_bytes > kWithoutOptIn) {
    const cudaError_t refused = cudaFuncSetAttribute(
        entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(launch.shared_bytes));
    if (refused != cudaSuccess) {
      return refused;
    }
  }
  return cudaLaunchKernel(entry, grid, dim3(launch.threads), parameters, launch.shared_bytes,
                          stream);
}

/// Launches the kernel that a dispatch function finds; for kernels of at most kThreads threads.
template <uint32_t kThreads>
struct LaunchKernel {
  const Launch& launch;
  const void* arguments;
  cudaStream_t stream;
  cudaError_t& result;

  template <class Kernel>
  bool operator()() const {
    uint32_t width = launch.grid_x;
    void* pointers[] = {const_cast<void*>(arguments), &width};
    result = launch_entry(reinterpret_cast<const void*>(&kernel_entry<Kernel, kThreads>), kThreads,
                          launch, dim3(launch.grid_x * launch.grid_y), pointers, stream);
    return true;
  }
};

// One source file each. False where the kernel is not among theirs.
bool launch_elementwise(const Launch& launch, const void* arguments, cudaStream_t stream,
                        cudaError_t& result);
bool launch_rows(const Launch& launch, const void* arguments, cudaStream_t stream,
                 cudaError_t& result);
bool launch_optimizer(const Launch& launch, const void* arguments, cudaStream_t stream,
                      cudaError_t& result);
bool launch_tiles(const Launch& launch, const void* arguments, cudaStream_t stream,
                  cudaError_t& result);
bool launch_flash_forward(const Launch& launch, const void* arguments, cudaStream_t stream,
                          cudaError_t& result);
bool launch_flash_keys(const Launch& launch, const void* arguments, cudaStream_t stream,
                       cudaError_t& result);
bool launch_flash_queries(const Launch& launch, const void* arguments, cudaStream_t stream,
                          cudaError_t& result);

}  // namespace headrace::device::cuda
