#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/memory_plan.h"
#include "engine/recompute_choice.h"

namespace headrace::engine {

/// What a memory plan is made of, so that it can be tried with several cuts and orders.
struct PlanInput {
  const model::ModelConfig& config;
  DType dtype;
  const model::BatchShape& shape;
  const NetworkNeeds& needs;
  const WorkEstimate& work;
  const MemoryRequest& request;
};

/// The largest parts that modules and their optimizer state are cut into.
struct Parts {
  Elements shard_max;
  int64_t tile_rows = 0;     ///< as LayoutOptions::tile_rows
  model::BlockCut cut = {};  ///< of blocks
};

/// How the operations of a step may be ordered.
struct StepOrder {
  AccumulationOrder accumulation = AccumulationOrder::layer_major;
  UpdateMode updates = UpdateMode::after_norm;
  bool accumulate_on_device = false;
};

/// Bytes of the slots of all objects, or of those with this home.
Bytes slot_sum(const ModelLayout& layout, std::optional<Tier> home);

/// Bytes of all objects that live inside a step and may go down to nvme: no schedule has more of
/// them there at once, for what is written anew is dropped there first.
Bytes spillable_bytes(const ModelLayout& layout);

/// The plan makes no smaller shards. Gradient norms are summed in whole blocks; and shards of one
/// block each would be so many in a large model that planning takes long, while it is a module's
/// weights and gradient that decide what fits, beside which a shard is small.
Elements smallest_shard(const model::ModelConfig& config, const MemoryRequest& request);

/// Share of the optimizer that is offloaded, where the request leaves a choice all of it.
double offload_ratio(const MemoryRequest& request);

/// The level that is asked for; without one the leanest.
RecomputeLevels requested_levels(const PlanInput& input);

/// Cuts of blocks that may be chosen, as block_cut_choices(). Blocks that save something are whole.
std::vector<model::BlockCut> allowed_cuts(const PlanInput& input);

/// The order that needs the least memory among those that may be chosen.
StepOrder leanest_order(const MemoryRequest& request);

/// Layout and traces for one cut, order and choice of what is computed again, with the smallest
/// device budget.
MemoryPlan lay_out(const PlanInput& input, Parts parts, StepOrder order,
                   const RecomputeLevels& recompute);

/// Fills the arenas' sizes for a device budget and finds the smallest host budget that goes with
/// it.
void fit_host(MemoryPlan& plan, Bytes device_memory, Bytes host_memory);

/// fit_host with the request's budgets; false where the plan needs more than one of them has.
bool fit_budgets(MemoryPlan& plan, const MemoryRequest& request);

/// With the smallest shards in the leanest order: of the smallest vocabulary tiles and one, and the
/// smallest tiles of blocks and whole ones, what needs less of the device, and then of the host
/// where it gets no more of the device than that.
MemoryPlan smallest_plan(const PlanInput& input);

/// Of whole blocks, or where these do not fit of the smallest tiles, what needs less of the host,
/// where it gets all of the device budget; empty where none fits the request. Tiles can need more
/// of the host, for what the head keeps between them. Its minima are the least of all of the same.
std::optional<MemoryPlan> smallest_that_fits(const PlanInput& input);

/// The smallest nvme budget that goes with the request's other budgets, which must be large enough:
/// without room for what may spill where the host holds that.
Bytes least_nvme(const PlanInput& input);

}  // namespace headrace::engine
