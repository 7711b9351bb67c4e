#include "engine/gpu_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace headrace::engine {

namespace {

constexpr Bytes kLeastHeadroom{int64_t{512} << 20};
/// Of the device tier, what cuDNN may take for the scores of one layer's backward pass: it caches
/// weights else.
constexpr int64_t kAttentionShare = 32;

}  // namespace

std::optional<device::GpuFound> find_gpu_for(const Settings& settings) {
  if (settings.compute != ComputePlace::device) {
    return std::nullopt;
  }
  if (!settings.gpu.gpu) {
    log_message_once(LogLevel::info, "device-tier-emulated",
                     fmt::format("no GPU is used ({}): the device tier is emulated in host memory",
                                 settings.gpu.refusal));
  }
  return settings.gpu.gpu;
}

std::optional<int> memory_node_for(const std::optional<int>& gpu_node, const MemoryRequest& request,
                                   const std::vector<tiers::NumaNode>& nodes) {
  const bool cpu_updates = request.offload_optimizer || !request.can_update_on_device();
  if (!gpu_node || nodes.size() < 2 || cpu_updates) {
    return std::nullopt;
  }
  const auto near = std::find_if(nodes.begin(), nodes.end(), [&](const tiers::NumaNode& node) {
    return node.os_index == *gpu_node;
  });
  return near != nodes.end() && near->memory >= request.host_memory ? gpu_node : std::nullopt;
}

Bytes gpu_headroom(Bytes memory) {
  // For what the CUDA driver and cuBLASLt take while they run: kernels that are loaded, local
  // memory, the rounding of allocations, CUDA graphs.
  static_assert(device::GraphOptions().most_memory.count() * 4 <= kLeastHeadroom.count());
  return std::max(kLeastHeadroom, Bytes(memory.count() / 50));
}

void check_fp8(const Settings& settings, const device::GpuFound& gpu) {
  if (settings.fp8_forward && !gpu.has_fp8) {
    throw InputError(
        fmt::format("headrace.lossy_fp8_forward: {} has no products in fp8, which begin with "
                    "compute capability 8.9 (Ada, Hopper, Blackwell); leave the key out",
                    gpu.description));
  }
}

void use_gpu(EngineOptions& options, const device::GpuFound& gpu, device::GpuOptions how) {
  if (!options.memory.device_memory) {
    const Bytes headroom = gpu_headroom(gpu.memory);
    options.memory.device_memory = std::max(gpu.free_memory - headroom, Bytes(0));
    log_info("device memory: {} of the {} that the GPU has free; {} are left to CUDA",
             format_bytes(*options.memory.device_memory), format_bytes(gpu.free_memory),
             format_bytes(headroom));
  }
  how.attention_workspace = *options.memory.device_memory / kAttentionShare;
  options.make_device = [make = gpu.make_device, how] { return make(how); };
  options.memory_node = memory_node_for(tiers::pci_numa_node(gpu.pci_address), options.memory,
                                        tiers::detect_topology().numa_nodes);
  if (options.memory_node && !options.numa_node) {
    log_info("host memory is on NUMA node {}, as the GPU is", *options.memory_node);
  }
  log_info("computing on {}", gpu.description);
}

}  // namespace headrace::engine
