#pragma once

#include "device/optimizer.h"
#include "engine/optimizer/update.h"

namespace headrace::engine {

/// The numbers of a step and the arrays of a shard as the device's optimizer takes them
/// (device::Kernels::optimizer_update), which then gives the bits of update().
device::OptimizerStep device_step(const UpdateOptions& options);
device::OptimizerArrays device_arrays(const UpdateShard& shard);

}  // namespace headrace::engine
