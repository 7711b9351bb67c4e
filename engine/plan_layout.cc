#include "engine/plan_layout.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/block_operations.h"
#include "engine/vocabulary_tiles.h"

namespace headrace::engine {

namespace {

constexpr Bytes kSlotAlignment{4096};

/// Permanent slots, packed from offset 0 in the order of the objects.
std::vector<scheduler::Residency> pack_homes(const ModelLayout& layout) {
  std::vector<scheduler::Residency> homes;
  Bytes used[2];
  for (size_t i = 0; i < layout.objects.size(); ++i) {
    const scheduler::ObjectFacts& object = layout.objects[i];
    if (!object.home || *object.home == Tier::nvme) {
      continue;
    }
    Bytes& top = used[static_cast<size_t>(*object.home)];
    homes.push_back({ObjectId{static_cast<uint32_t>(i)}, *object.home, top.count(), false});
    top += object.size;
  }
  return homes;
}

std::vector<const scheduler::Trace*> all_traces(const MemoryPlan& plan) {
  std::vector<const scheduler::Trace*> traces = {&plan.training.trace, &plan.evaluation.trace,
                                                 &plan.load.trace, &plan.save.trace};
  for (const std::optional<StepTrace>* trace : {&plan.speculative, &plan.redo}) {
    if (*trace) {
      traces.push_back(&(*trace)->trace);
    }
  }
  return traces;
}

Bytes round_down(Bytes size) {
  return Bytes(size.count() / kSlotAlignment.count() * kSlotAlignment.count());
}

}  // namespace

Bytes slot_sum(const ModelLayout& layout, std::optional<Tier> home) {
  Bytes sum;
  for (const scheduler::ObjectFacts& object : layout.objects) {
    if (!home || object.home == home) {
      sum += object.size;
    }
  }
  return sum;
}

Bytes spillable_bytes(const ModelLayout& layout) {
  Bytes sum;
  for (const scheduler::ObjectFacts& object : layout.objects) {
    if (!object.home && object.floor == Tier::nvme) {
      sum += object.size;
    }
  }
  return sum;
}

Elements smallest_shard(const model::ModelConfig& config, const MemoryRequest& request) {
  constexpr int64_t kShardsAtMost = 16384;
  const int64_t by_number = model::parameter_count(config).count() / kShardsAtMost;
  const Elements blocks(align_up(by_number, kStatisticsBlock.count()));
  return std::max(kStatisticsBlock, std::min(request.sub_group_size, blocks));
}

double offload_ratio(const MemoryRequest& request) {
  const bool has_choice =
      request.device_memory && request.offload_optimizer && request.can_update_on_device();
  return has_choice ? request.offload_ratio.value_or(1) : 1;
}

RecomputeLevels requested_levels(const PlanInput& input) {
  return RecomputeLevels(static_cast<size_t>(input.config.layers),
                         input.request.recompute.value_or(model::Recompute::block));
}

std::vector<model::BlockCut> allowed_cuts(const PlanInput& input) {
  if (input.request.recompute.value_or(model::Recompute::block) != model::Recompute::block) {
    return {{}};
  }
  return block_cut_choices(input.config, input.needs.block_pieces);
}

StepOrder leanest_order(const MemoryRequest& request) {
  // One micro-batch has one order, whatever it is called.
  return {request.accumulation_order.value_or(request.micro_batches == 1
                                                  ? AccumulationOrder::layer_major
                                                  : AccumulationOrder::micro_batch_major),
          UpdateMode::after_norm};
}

namespace {

/// Of the largest operation.
Bytes workspace_of(const NetworkNeeds& needs, const Parts& parts) {
  const bool is_tiled = parts.tile_rows > 0;
  if (parts.cut.is_cut()) {
    return is_tiled ? needs.cut_tiled_workspace : needs.cut_workspace;
  }
  return is_tiled ? needs.tiled_workspace.value_or(needs.workspace) : needs.workspace;
}

}  // namespace

MemoryPlan lay_out(const PlanInput& input, Parts parts, StepOrder order,
                   const RecomputeLevels& recompute) {
  MemoryPlan plan;
  plan.tokens = align_up(bytes_for(Elements(input.shape.tokens()) * 2, DType::i32) + Bytes(64),
                         kSlotAlignment);
  plan.workspace = align_up(workspace_of(input.needs, parts), kSlotAlignment);
  plan.constants = align_up(input.needs.constants, kSlotAlignment);
  LayoutOptions options;
  options.dtype = input.dtype;
  options.placement = make_placement(input.request);
  options.state = input.request.state;
  options.offload_ratio = offload_ratio(input.request);
  options.tokens = input.shape.tokens();
  options.micro_batches = input.request.micro_batches;
  options.fp32_gradients = input.request.fp32_gradients;
  options.order = order.accumulation;
  options.update_mode = order.updates;
  options.accumulate_on_device = order.accumulate_on_device;
  options.recompute = recompute;
  options.saved_bytes = input.needs.saved;
  options.alignment = kSlotAlignment;
  options.shard_max = parts.shard_max;
  options.tile_rows = parts.tile_rows;
  options.cut = parts.cut;
  options.block_sum_bytes = input.needs.block_sum;
  plan.layout = make_layout(input.config, options);
  const int64_t micro_batches = input.request.micro_batches;
  if (order.updates == UpdateMode::speculative) {
    plan.training =
        make_training_trace(plan.layout, micro_batches, UpdateMode::after_norm, input.work);
    plan.speculative =
        make_training_trace(plan.layout, micro_batches, UpdateMode::speculative, input.work);
    plan.redo = make_redo_trace(plan.layout, input.work);
  } else {
    plan.training = make_training_trace(plan.layout, micro_batches, order.updates, input.work);
  }
  plan.evaluation = make_evaluation_trace(plan.layout, input.work);
  plan.load = make_load_trace(plan.layout, input.work);
  plan.save = make_save_trace(plan.layout, input.work);
  plan.homes = pack_homes(plan.layout);
  plan.minimum_nvme = slot_sum(plan.layout, Tier::nvme) * (input.request.in_place() ? 1 : 2);
  if (order.updates == UpdateMode::speculative && plan.layout.placement.weights != Tier::nvme) {
    // The last checkpoint, beside the values before and after the step.
    plan.minimum_nvme += slot_sum(plan.layout, Tier::nvme);
  }
  plan.minimum_nvme += spillable_bytes(plan.layout);
  if (plan.has_device()) {
    Bytes arena;
    for (const auto* trace : all_traces(plan)) {
      arena = std::max(
          arena, scheduler::minimum_device_budget(*trace, plan.layout.objects, kSlotAlignment));
    }
    plan.minimum_device = plan.fixed_bytes() + arena;
  }
  return plan;
}

void fit_host(MemoryPlan& plan, Bytes device_memory, Bytes host_memory) {
  const Bytes everything = slot_sum(plan.layout, std::nullopt);
  const Bytes host_fixed = plan.has_device() ? Bytes(0) : plan.fixed_bytes();
  if (plan.has_device()) {
    plan.device_arena = round_down(std::min(everything, device_memory - plan.fixed_bytes()));
  }
  Bytes arena;
  for (const auto* trace : all_traces(plan)) {
    arena = std::max(arena, scheduler::minimum_host_budget(*trace, plan.layout.objects,
                                                           plan.device_arena, kSlotAlignment));
  }
  plan.minimum_host = host_fixed + arena;
  plan.host_arena = round_down(std::clamp(host_memory - host_fixed, Bytes(0), everything));
}

bool fit_budgets(MemoryPlan& plan, const MemoryRequest& request) {
  const Bytes device_memory = request.device_memory.value_or(Bytes(0));
  if (plan.minimum_device > device_memory || plan.minimum_nvme > request.nvme_budget) {
    return false;
  }
  fit_host(plan, device_memory, request.host_memory);
  return plan.minimum_host <= request.host_memory;
}

namespace {

/// First and last, or the only one.
template <class T>
std::vector<T> ends_of(const std::vector<T>& values) {
  return values.size() == 1 ? values : std::vector<T>{values.front(), values.back()};
}

/// The smallest shards in the leanest order, with the vocabulary whole and in the smallest tiles.
std::vector<MemoryPlan> smallest_plans(const PlanInput& input, const model::BlockCut& cut) {
  const std::vector<int64_t> rows = vocab_tile_choices(input.config, input.needs.logits_tile);
  std::vector<MemoryPlan> plans;
  for (const int64_t tile_rows : ends_of(rows)) {
    plans.push_back(lay_out(input, {smallest_shard(input.config, input.request), tile_rows, cut},
                            leanest_order(input.request), requested_levels(input)));
  }
  return plans;
}

}  // namespace

MemoryPlan smallest_plan(const PlanInput& input) {
  std::optional<MemoryPlan> smallest;
  for (const model::BlockCut& cut : ends_of(allowed_cuts(input))) {
    for (MemoryPlan& plan : smallest_plans(input, cut)) {
      fit_host(plan, plan.minimum_device, Bytes(0));
      if (!smallest || std::pair(plan.minimum_device, plan.minimum_host) <
                           std::pair(smallest->minimum_device, smallest->minimum_host)) {
        smallest = std::move(plan);
      }
    }
  }
  return std::move(*smallest);
}

std::optional<MemoryPlan> smallest_that_fits(const PlanInput& input) {
  std::optional<MemoryPlan> best;
  std::optional<Bytes> device;
  std::optional<Bytes> host;
  for (const model::BlockCut& cut : ends_of(allowed_cuts(input))) {
    if (best && input.request.is_quick) {
      break;
    }
    const bool has_coarser = best.has_value();
    for (MemoryPlan& plan : smallest_plans(input, cut)) {
      device = std::min(device.value_or(plan.minimum_device), plan.minimum_device);
      if (!fit_budgets(plan, input.request)) {
        continue;
      }
      host = std::min(host.value_or(plan.minimum_host), plan.minimum_host);
      if (!best || (!has_coarser && plan.minimum_host < best->minimum_host)) {
        best = std::move(plan);
      }
    }
  }
  if (best) {
    best->minimum_device = *device;
    best->minimum_host = *host;
  }
  return best;
}

Bytes least_nvme(const PlanInput& input) {
  MemoryRequest request = input.request;
  request.nvme_budget = Bytes(std::numeric_limits<int64_t>::max());
  const PlanInput unlimited{input.config, input.dtype, input.shape,
                            input.needs,  input.work,  request};
  for (const bool spills : {false, true}) {
    request.spills = spills && input.request.spills;
    // Tiles of blocks need more, for the gaps behind their parts.
    for (const model::BlockCut& cut : ends_of(allowed_cuts(unlimited))) {
      std::optional<Bytes> least;
      for (MemoryPlan& plan : smallest_plans(unlimited, cut)) {
        if (fit_budgets(plan, request)) {
          least = std::min(least.value_or(plan.minimum_nvme), plan.minimum_nvme);
        }
      }
      if (least) {
        return *least;
      }
    }
  }
  HR_CHECK(false, "the smallest plan does not fit device and host");
}

}  // namespace headrace::engine
