#pragma once

#include <optional>
#include <string>

#include "device/gpu.h"
#include "engine/config/settings.h"
#include "engine/engine.h"
#include "engine/optimizer/loss_scaler.h"
#include "engine/optimizer/lr_schedule.h"

namespace headrace::engine {

/// Connects the resolved settings with the parts that act on them. Budgets that are not set come
/// from the machine: host memory from cgroup limit and free memory, disk from the free space. Where
/// the state of the run is kept is left to set_run().
EngineOptions make_engine_options(const Settings& settings, int64_t seq);
/// The same for the GPU that find_gpu_for() has found, or for none.
EngineOptions make_engine_options(const Settings& settings, int64_t seq,
                                  const std::optional<device::GpuFound>& gpu);
/// What a run may take of the disk that holds `path` where no budget is given.
Bytes default_disk_budget(const std::string& path);
LrScheduleOptions make_lr_options(const Settings& settings);
LossScalerOptions make_loss_scaler_options(const Settings& settings);

}  // namespace headrace::engine
