#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/backend/cuda_block.cuh"
#include "device/cuda/launch.h"

namespace headrace::device::cuda {

/// Launches the kernel that a dispatch function finds; for kernels of at most kThreads threads.
template <uint32_t kThreads>
struct LaunchKernel {
  const Launch& launch;
  const void* arguments;
  cudaStream_t stream;
  cudaError_t& result;

  template <class Kernel>
  bool operator()() const {
    constexpr uint32_t kWithoutOptIn = 48 << 10;
    const auto* const entry = reinterpret_cast<const void*>(&kernel_entry<Kernel, kThreads>);
    if (launch.threads > kThreads) {
      result = cudaErrorInvalidConfiguration;
      return true;
    }
    if (launch.shared_bytes > kWithoutOptIn) {
      result = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(launch.shared_bytes));
      if (result != cudaSuccess) {
        return true;
      }
    }
    uint32_t width = launch.grid_x;
    void* pointers[] = {const_cast<void*>(arguments), &width};
    result = cudaLaunchKernel(entry, dim3(launch.grid_x * launch.grid_y), dim3(launch.threads),
                              pointers, launch.shared_bytes, stream);
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

}  // namespace headrace::device::cuda
