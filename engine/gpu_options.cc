#include "engine/gpu_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace headrace::engine {

std::optional<device::GpuFound> find_gpu_for(const Settings& settings) {
  if (settings.compute != ComputePlace::device) {
    return std::nullopt;
  }
  device::GpuSearch search = device::find_gpu();
  if (!search.gpu) {
    log_message_once(LogLevel::info, "device-tier-emulated",
                     fmt::format("no GPU is used ({}): the device tier is emulated in host memory",
                                 search.refusal));
  }
  return std::move(search.gpu);
}

void apply_gpu_rules(MemoryRequest& request) {
  request.device_is_host_addressable = false;
  if (request.offload_ratio.value_or(1) < 1) {
    log_info(
        "offload_optimizer.ratio has no effect on a GPU: the CPU updates all of the optimizer");
  }
  request.offload_ratio = 1;
}

Bytes gpu_headroom(Bytes memory) {
  // For what the CUDA driver and cuBLASLt take while they run: kernels that are loaded, local
  // memory, the rounding of allocations.
  return std::max(kMiB * 512, Bytes(memory.count() / 50));
}

void use_gpu(EngineOptions& options, const device::GpuFound& gpu) {
  options.make_device = gpu.make_device;
  apply_gpu_rules(options.memory);
  if (!options.memory.device_memory) {
    const Bytes headroom = gpu_headroom(gpu.memory);
    options.memory.device_memory = std::max(gpu.free_memory - headroom, Bytes(0));
    log_info("device memory: {} of the {} that the GPU has free; {} are left to CUDA",
             format_bytes(*options.memory.device_memory), format_bytes(gpu.free_memory),
             format_bytes(headroom));
  }
  log_info("computing on {}", gpu.description);
}

}  // namespace headrace::engine
