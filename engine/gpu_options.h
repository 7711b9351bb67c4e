#pragma once

#include <optional>

#include "device/gpu.h"
#include "engine/config/settings.h"
#include "engine/engine.h"

namespace headrace::engine {

/// The GPU that a run with these settings computes on. Where the device tier is emulated, that is
/// logged once, with the reason.
std::optional<device::GpuFound> find_gpu_for(const Settings& settings);

/// What memory that the CPU cannot address means for a request, whether the GPU is here or named
/// for a plan: the CPU updates all of the optimizer, in host memory.
void apply_gpu_rules(MemoryRequest& request);

/// Of a GPU's memory, what is left to CUDA itself where no budget is given.
Bytes gpu_headroom(Bytes memory);

/// Makes the GPU the device that computes. A budget of the device tier that is not given becomes
/// what the GPU has free less headroom, which is logged.
void use_gpu(EngineOptions& options, const device::GpuFound& gpu);

}  // namespace headrace::engine
