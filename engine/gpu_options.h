#pragma once

#include <optional>
#include <vector>

#include "device/gpu.h"
#include "engine/config/settings.h"
#include "engine/engine.h"
#include "tiers/topology.h"

namespace headrace::engine {

/// The GPU that a run with these settings computes on, of Settings::gpu. Where the device tier is
/// emulated, that is logged once, with the reason.
std::optional<device::GpuFound> find_gpu_for(const Settings& settings);

/// The NUMA node that host memory is bound to: the GPU's, where the GPU updates all of the
/// optimizer and the node's memory holds the budget. Where the CPU updates, memory stays spread
/// over all nodes: the updates move several times what the link moves, at the rate of all nodes
/// together.
std::optional<int> memory_node_for(const std::optional<int>& gpu_node, const MemoryRequest& request,
                                   const std::vector<tiers::NumaNode>& nodes);

/// InputError where the settings ask for products that the GPU does not have.
void check_fp8(const Settings& settings, const device::GpuFound& gpu);

/// Of a GPU's memory, what is left to CUDA itself where no budget is given.
Bytes gpu_headroom(Bytes memory);

/// Makes the GPU the device that computes, with host memory as memory_node_for() says. A budget of
/// the device tier that is not given becomes what the GPU has free less headroom, which is logged.
/// cuDNN's attention may take a small part of it.
void use_gpu(EngineOptions& options, const device::GpuFound& gpu, device::GpuOptions how);

}  // namespace headrace::engine
