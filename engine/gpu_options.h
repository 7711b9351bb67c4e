#pragma once

#include "device/gpu.h"
#include "engine/engine.h"

namespace headrace::engine {

/// Makes the GPU the device that computes. A budget of the device tier that is not given becomes
/// what the GPU has free less headroom for CUDA itself, which is logged.
void use_gpu(EngineOptions& options, const device::GpuFound& gpu);

}  // namespace headrace::engine
