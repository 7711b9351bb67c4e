#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/launch.h"

namespace headrace::device::testing {

/// What the blocks of a launch did, per warp where nothing else is said.
struct FlashCounts {
  int64_t products = 0;   ///< mma
  int64_t loads = 0;      ///< ldmatrix
  int64_t passes = 0;     ///< over shared memory, per block
  int64_t conflicts = 0;  ///< passes more because of bank conflicts
};

/// Runs a kernel of tensor-core attention on the calling thread, checking every access to memory
/// (InternalError); false where the launch is of another kernel.
bool run_flash_kernel(const cuda::Launch& launch, const void* arguments,
                      FlashCounts* counts = nullptr);
/// Bytes of its argument structure, 0 for another kernel.
size_t flash_argument_bytes(const cuda::Launch& launch);

}  // namespace headrace::device::testing
