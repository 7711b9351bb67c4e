#include "engine/gpu_options.h"

#include <algorithm>

#include "base/log.h"

namespace headrace::engine {

namespace {

/// For what the CUDA driver and cuBLASLt take while they run: kernels that are loaded, local
/// memory, the rounding of allocations.
Bytes headroom_of(Bytes memory) {
  return std::max(kMiB * 512, Bytes(memory.count() / 50));
}

}  // namespace

void use_gpu(EngineOptions& options, const device::GpuFound& gpu) {
  options.make_device = gpu.make_device;
  options.memory.device_is_host_addressable = false;
  if (options.memory.offload_ratio.value_or(1) < 1) {
    log_info(
        "offload_optimizer.ratio has no effect on a GPU: the CPU updates all of the optimizer");
  }
  options.memory.offload_ratio = 1;
  if (!options.memory.device_memory) {
    const Bytes headroom = headroom_of(gpu.memory);
    options.memory.device_memory = std::max(gpu.free_memory - headroom, Bytes(0));
    log_info("device memory: {} of the {} that the GPU has free; {} are left to CUDA",
             format_bytes(*options.memory.device_memory), format_bytes(gpu.free_memory),
             format_bytes(headroom));
  }
  log_info("computing on {}", gpu.description);
}

}  // namespace headrace::engine
