#pragma once

#include <optional>
#include <string>
#include <vector>

#include "e2e/training_harness.h"

/// What the tests of values that are cut into tiles, because they do not fit as wholes, share.
namespace headrace::test {

/// With `clips` the last of the steps is clipped, after three that are not.
inline CurveSettings tile_curve(const std::string& folder, DType dtype, model::BatchShape shape,
                                int64_t micro_batches, bool clips, int32_t vocabulary) {
  CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = shape;
  settings.loss_scale = dtype == DType::f16 ? 1024 : 1;
  settings.gradient_clipping = 0;
  settings.check_finite = clips;
  settings.steps = random_steps(5, clips ? 4 : 3, micro_batches, shape, vocabulary);
  if (clips) {
    settings.adjust = [](size_t step, engine::StepNumbers& numbers) {
      numbers.gradient_clipping = step < 3 ? 1e6 : 1e-3;
    };
  }
  settings.learning_rates.assign(settings.steps.size(), 1e-3);
  return settings;
}

/// How much more than the least a tier gets.
struct Budget {
  bool is_least = false;
  Bytes more;
};
inline const Budget kLeast{true, Bytes(0)};
inline const Budget kPlenty{false, kMiB * 256};

struct TileVariant {
  const char* name;
  std::optional<Budget> device;
  Budget host;
  std::optional<Tier> param = Tier::nvme;
  std::optional<Tier> optimizer = Tier::nvme;
  const char* policy = "optimal";
  std::optional<engine::AccumulationOrder> order = {};
  bool overlap = true;
  bool fp32_gradients = false;
};

inline const TileVariant kWholeInMemory{"wholes in memory", {}, kPlenty, {}, {}};

/// Those that cut: into the smallest tiles, but for those with `roomy` devices.
inline std::vector<TileVariant> cut_variants(const Budget& roomy) {
  using engine::AccumulationOrder;
  return {
      {"least device and host", kLeast, kLeast},
      {"least device, lru", kLeast, kLeast, Tier::nvme, Tier::nvme, "lru"},
      {"least device, liveness", kLeast, kPlenty, Tier::nvme, Tier::nvme, "liveness"},
      {"larger tiles", roomy, kPlenty},
      {.name = "larger tiles, no overlap", .device = roomy, .host = kPlenty, .overlap = false},
      {"offload to the host", kLeast, kPlenty, Tier::host, Tier::host},
      {"layer-major", kLeast, kPlenty, Tier::nvme, Tier::nvme, "optimal",
       AccumulationOrder::layer_major},
      {"micro-batch-major", kLeast, kPlenty, Tier::nvme, Tier::nvme, "optimal",
       AccumulationOrder::micro_batch_major},
      {"least host without a device tier", {}, kLeast},
  };
}

/// `options` brings the sizes of tiles.
inline engine::EngineOptions options_of(const TileVariant& variant, const CurveSettings& settings,
                                        engine::EngineOptions options) {
  options.pin_memory = false;
  options.policy = variant.policy;
  engine::MemoryRequest& memory = options.memory;
  memory.host_memory = variant.host.more;
  if (variant.device) {
    memory.device_memory = variant.device->more;
  }
  memory.offload_param = variant.param;
  memory.offload_optimizer = variant.optimizer;
  memory.nvme_activations = variant.optimizer == Tier::nvme;
  memory.host_activations = variant.optimizer == Tier::host;
  memory.accumulation_order = variant.order;
  memory.optimizer_overlap = variant.overlap;
  memory.updates_need_norm = settings.check_finite;
  memory.fp32_gradients = variant.fp32_gradients;
  const engine::MinimumBudgets least = least_budgets(settings, options);
  if (variant.host.is_least) {
    memory.host_memory += least.host;
  }
  if (variant.device && variant.device->is_least) {
    *memory.device_memory += least.device;
  }
  return options;
}

}  // namespace headrace::test
