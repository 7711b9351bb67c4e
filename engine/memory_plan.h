#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model_layout.h"
#include "engine/step_trace.h"
#include "model/model_config.h"
#include "model/network.h"
#include "scheduler/schedule.h"

namespace headrace::engine {

/// What the user allows and asks for, as far as memory is concerned.
struct MemoryRequest {
  std::optional<Bytes>
      device_memory;  ///< set: a device tier of this size; empty: compute on the host
  Bytes host_memory;  ///< hard budget
  bool has_nvme = false;
  Bytes nvme_budget;                  ///< most bytes on disk
  bool wants_in_place = false;        ///< headrace.durability; in_place() says whether it can be
  std::string nvme_path;              ///< for messages
  std::optional<Tier> offload_param;  ///< empty: none
  std::optional<Tier> offload_optimizer;  ///< empty: none
  /// Share of it; the rest lives on the device, where there is one. Empty: of an optimizer on the
  /// host what is faster and fits.
  std::optional<double> offload_ratio = 1;
  bool host_activations = false;  ///< cpu_checkpointing
  bool nvme_activations = false;
  /// What lives inside a step may go down to nvme, where it is offloaded there.
  bool spills = true;
  Elements sub_group_size{1'000'000'000};
  StateRequest state;
  int64_t micro_batches = 1;
  std::optional<AccumulationOrder> accumulation_order;  ///< empty: the faster one that fits
  scheduler::Rates rates;  ///< by which orders are compared, until they are measured
  std::optional<model::Recompute> recompute;  ///< of all blocks; empty: what fits and is faster
  bool fp32_gradients = false;  ///< sums of gradients are not rounded to the compute dtype
  /// For plans that are only compared with each other: orders are compared by fewer policies, and
  /// the minima are those of whole blocks where these fit.
  bool is_quick = false;
  bool optimizer_overlap = true;  ///< update during backward where that fits and is faster
  /// Updates depend on the gradients' norm: they are clipped by it, or skipped where it is not
  /// finite.
  bool updates_need_norm = true;

  /// 8-bit moments are updated by the CPU alone.
  bool can_update_on_device() const { return state.moment_dtype != DType::u8; }

  /// Values on disk are overwritten: the next step needs no room. Only where all of the state lives
  /// there, for state in memory is written at checkpoints only.
  bool in_place() const {
    return wants_in_place && offload_param == Tier::nvme && offload_optimizer == Tier::nvme &&
           (!device_memory || !can_update_on_device() || offload_ratio.value_or(1) == 1);
  }
};

/// The schedule of a step, and the residency that it starts from.
struct CompiledStep {
  std::vector<scheduler::Residency> initial;
  scheduler::Schedule schedule;
};

/// Where every byte goes, decided before anything is allocated. A value.
struct MemoryPlan {
  ModelLayout layout;
  StepTrace training;
  /// With speculative updates: the training trace of a step that takes the chance, and what makes
  /// it good where the assumption was wrong.
  std::optional<StepTrace> speculative;
  std::optional<StepTrace> redo;
  StepTrace evaluation;
  StepTrace load;
  StepTrace save;

  Bytes tokens;        ///< ids and labels of one micro-batch, in the compute tier
  Bytes workspace;     ///< scratch of the largest operation, in the compute tier
  Bytes constants;     ///< rope table, in the compute tier
  Bytes device_arena;  ///< for objects; 0: no device tier
  Bytes host_arena;
  std::vector<scheduler::Residency> homes;  ///< permanent slots on device and host

  Bytes minimum_device;  ///< smallest device budget that works; 0: no device tier
  Bytes minimum_host;    ///< smallest host budget that works
  Bytes minimum_nvme;    ///< committed values, the next step's beside them, and what may spill

  /// Of usual_step() from `homes`, by the optimal policy at the request's rates; null where the
  /// choice of the plan did not need it.
  std::shared_ptr<const scheduler::Schedule> first_schedule;
  /// The same of a step whose residency has settled.
  std::shared_ptr<const CompiledStep> late_step;

  /// What most steps of a run are.
  const StepTrace& usual_step() const { return speculative ? *speculative : training; }
  Bytes fixed_bytes() const { return tokens + workspace + constants; }
  bool has_device() const { return layout.placement.compute == Tier::device; }
};

/// What a trace of the plan is compiled from; refers to plan and trace.
scheduler::CompileInput compile_input(const MemoryPlan& plan, const StepTrace& trace,
                                      const scheduler::Rates& rates,
                                      std::vector<scheduler::Residency> initial);

/// Bytes that one micro-batch needs beside objects.
struct NetworkNeeds {
  Bytes workspace;
  Bytes constants;
  std::optional<Bytes> tiled_workspace = {};  ///< with several vocabulary tiles; empty: the same
  int64_t logits_tile = 4096;  ///< vocabulary entries that the head works on at a time
  /// What a block saves for backward. Where a level saves nothing, it is not chosen.
  model::PerLevel<Bytes> saved{};
  /// What tiles of blocks are multiples of; where there is none, blocks are not cut. Then the
  /// workspace, also with several vocabulary tiles, and ModelLayout::block_sums.
  model::BlockCut block_pieces{};
  Bytes cut_workspace = {};
  Bytes cut_tiled_workspace = {};
  Bytes block_sum = {};
};
NetworkNeeds network_needs(const model::Network& network);

/// Placement that the offload settings mean. Throws InputError where nvme is asked for without a
/// path.
Placement make_placement(const MemoryRequest& request);

/// Lays the model out, chooses tiles, shard size, accumulation order and update mode, and checks
/// that every operation fits. Where the disk has no room for what may spill inside a step, and the
/// host budget has, it stays there. Throws CapacityError with the minimum of the tier that is too
/// small and the settings that change it.
MemoryPlan make_memory_plan(const model::ModelConfig& config, DType dtype,
                            const model::BatchShape& shape, const NetworkNeeds& needs,
                            const WorkEstimate& work, const MemoryRequest& request);

/// Smallest budgets with which the run works; device 0 without a device tier. The host's goes with
/// the smallest device budget.
struct MinimumBudgets {
  Bytes device;
  Bytes host;
  Bytes nvme;
};
MinimumBudgets minimum_budgets(const model::ModelConfig& config, DType dtype,
                               const model::BatchShape& shape, const NetworkNeeds& needs,
                               const MemoryRequest& request);

/// The table printed before a run: what goes where, and the budgets.
std::string describe(const MemoryPlan& plan, const MemoryRequest& request);

}  // namespace headrace::engine
