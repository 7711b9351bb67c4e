#include "engine/run_setup.h"

#include <algorithm>

#include "engine/gpu_options.h"
#include "engine/nvme_weights.h"
#include "engine/planner/hardware.h"
#include "tiers/topology.h"

namespace headrace::engine {

namespace {

/// Share of the free memory and disk that a run takes when no budget is given.
constexpr double kDefaultMemoryShare = 0.7;
constexpr double kDefaultDiskShare = 0.9;

Bytes share_of(Bytes available, double share) {
  return Bytes(static_cast<int64_t>(static_cast<double>(available.count()) * share));
}

std::optional<Tier> tier_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::none:
      return std::nullopt;
    case OffloadDevice::cpu:
      return Tier::host;
    case OffloadDevice::nvme:
      return Tier::nvme;
  }
  return std::nullopt;
}

const char* policy_name(PolicyKind policy) {
  switch (policy) {
    case PolicyKind::lru:
      return "lru";
    case PolicyKind::liveness:
      return "liveness";
    case PolicyKind::optimal:
      return "optimal";
  }
  return "optimal";
}

MemoryRequest make_memory_request(const Settings& settings, const tiers::MachineLimits& limits) {
  MemoryRequest request;
  if (settings.compute == ComputePlace::device) {
    request.device_memory = settings.budgets.device;
  }
  request.host_memory =
      settings.budgets.host.value_or(share_of(limits.memory_usable(), kDefaultMemoryShare));
  request.has_nvme = !settings.offload.nvme_paths.empty();
  request.offload_param = tier_of(settings.offload.weights);
  request.offload_optimizer = tier_of(settings.offload.optimizer);
  request.wants_in_place = settings.keeping.durability == Durability::in_place;
  request.offload_ratio = settings.offload.optimizer_ratio;
  request.host_activations = settings.offload.activations != OffloadDevice::none;
  request.nvme_activations = settings.offload.activations == OffloadDevice::nvme;
  request.sub_group_size = settings.offload.sub_group;
  request.state = settings.state;
  request.accumulation_order = settings.accumulation_order;
  request.recompute = settings.recompute;
  request.fp32_gradients = settings.fp32_gradients;
  request.optimizer_overlap = settings.optimizer_overlap;
  request.updates_need_norm = settings.gradient_clipping > 0 || settings.skip_nonfinite_steps;
  request.micro_batches = settings.batch.accumulation_steps;
  return request;
}

double per_second(const std::optional<Bytes>& limit) {
  return static_cast<double>(limit.value_or(Bytes(0)).count());
}

}  // namespace

EngineOptions make_engine_options(const Settings& settings, int64_t seq) {
  return make_engine_options(settings, seq, find_gpu_for(settings));
}

EngineOptions make_engine_options(const Settings& settings, int64_t seq,
                                  const std::optional<device::GpuFound>& gpu) {
  EngineOptions options;
  options.dtype = settings.dtype;
  options.shape = {settings.batch.micro, seq, settings.document_end.has_value()};
  options.policy = policy_name(settings.policy);
  options.liveness = settings.liveness;
  options.vocab_tile = settings.vocab_tile;
  options.fp8_forward = settings.fp8_forward;
  options.pin_memory = settings.offload.pin_memory;
  options.nvme_paths = settings.offload.nvme_paths;
  options.nvme_weights = nvme_weights(options.nvme_paths);
  options.run_id = settings.run_id;
  options.numa_node = settings.numa_node;
  options.verify_reads = settings.aio.verify_reads;
  options.direct_reads = settings.aio.direct;
  options.io.block_size = settings.aio.block_size;
  options.io.adaptive_depth = settings.aio.adaptive_depth;
  options.io.submission = settings.aio.submission;
  options.io.limits.read_bytes_per_second = per_second(settings.aio.read_limit);
  options.io.limits.write_bytes_per_second = per_second(settings.aio.write_limit);
  options.io.limits.both_bytes_per_second = per_second(settings.aio.limit);
  options.link_limit = per_second(settings.link_limit);
  options.nvme_prewrite = settings.aio.prewrite;
  options.io.queue_depth = settings.aio.requests_in_flight();
  options.io.backend = settings.aio.backend == IoBackendChoice::thread_pool
                           ? aio::BackendKind::thread_pool
                           : aio::BackendKind::io_uring;
  const std::string disk = options.nvme_paths.empty() ? "." : options.nvme_paths.front();
  const tiers::MachineLimits limits = tiers::machine_limits(disk);
  options.nvme_budget =
      settings.budgets.nvme.value_or(share_of(limits.disk_free, kDefaultDiskShare));
  options.memory = make_memory_request(settings, limits);
  options.memory.nvme_budget = options.nvme_budget;
  options.memory.nvme_path = disk;
  if (gpu) {
    check_fp8(settings, *gpu);
    use_gpu(options, *gpu,
            {.tf32 = settings.tf32,
             .graphs = {.use = settings.cuda_graphs},
             .attention = settings.attention});
  }
  use_hardware(known_hardware(settings, gpu ? gpu->name : ""), settings, options);
  return options;
}

Bytes default_disk_budget(const std::string& path) {
  return share_of(tiers::machine_limits(path).disk_free, kDefaultDiskShare);
}

LrScheduleOptions make_lr_options(const Settings& settings) {
  LrScheduleOptions options;
  const SchedulerSettings& from = settings.scheduler;
  switch (from.kind) {
    case SchedulerKind::constant:
      options.kind = LrScheduleOptions::Kind::constant;
      break;
    case SchedulerKind::warmup:
      options.kind = LrScheduleOptions::Kind::warmup;
      break;
    case SchedulerKind::warmup_decay:
      options.kind = LrScheduleOptions::Kind::warmup_decay;
      break;
    case SchedulerKind::warmup_cosine:
      options.kind = LrScheduleOptions::Kind::warmup_cosine;
      break;
  }
  options.base_lr = settings.optimizer.lr;
  options.warmup_min_lr = from.warmup_min_lr;
  options.warmup_max_lr = from.warmup_max_lr;
  options.warmup = from.warmup_shape == WarmupShape::linear
                       ? LrScheduleOptions::Warmup::linear
                       : LrScheduleOptions::Warmup::logarithmic;
  options.warmup_num_steps = from.warmup_steps;
  options.total_num_steps = from.total_steps;
  options.warmup_min_ratio = from.warmup_min_ratio;
  options.cos_min_ratio = from.cos_min_ratio;
  return options;
}

LossScalerOptions make_loss_scaler_options(const Settings& settings) {
  const LossScaleSettings& from = settings.loss_scale;
  LossScalerOptions options;
  options.dynamic = from.dynamic;
  options.initial = from.initial;
  options.min = from.min;
  options.window_steps = from.window_steps;
  options.hysteresis = from.hysteresis;
  options.consecutive_hysteresis = from.consecutive_hysteresis;
  return options;
}

}  // namespace headrace::engine
