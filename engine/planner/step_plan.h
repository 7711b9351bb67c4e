#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/recompute_choice.h"
#include "model/model_config.h"

namespace headrace::engine {

/// A run as far as memory and time are concerned: no data, no weights. A value.
struct PlanQuestion {
  model::ModelConfig config;
  EngineOptions options;

  int64_t tokens_per_step() const { return options.shape.tokens() * options.memory.micro_batches; }
};

/// Bytes that a step moves over each boundary.
struct StepTraffic {
  Bytes nvme_read;
  Bytes nvme_write;
  Bytes host_to_device;
  Bytes device_to_host;
};

/// What the run would do, step after step. A value; nothing is allocated for it.
struct StepPlan {
  Elements parameters;  ///< without gaps
  Placement placement;
  StateBytes state;
  RecomputeLevels recompute;
  int64_t vocab_tiles = 1;
  int64_t vocab_tile_entries = 0;  ///< of the first tile
  int64_t attention_tiles = 0;     ///< of a block that is cut, as mlp_tiles
  int64_t mlp_tiles = 0;
  AccumulationOrder order = AccumulationOrder::layer_major;
  UpdateMode update_mode = UpdateMode::after_norm;
  bool accumulates_on_device = false;
  size_t shards = 0;

  Bytes fixed;  ///< workspace, tokens and tables, in the compute tier
  bool has_device = false;
  Bytes device_arena;
  Bytes host_arena;
  Bytes everything;        ///< of all objects: more memory than this changes nothing
  MinimumBudgets minimum;  ///< of a quick plan those of whole blocks, where these fit
  Bytes peak_device;       ///< arena and fixed bytes in use at most
  Bytes peak_host;
  Bytes nvme_for_good;  ///< of one generation

  int64_t tokens = 0;                                ///< per step
  double seconds = 0;                                ///< predicted
  std::array<double, scheduler::kLaneCount> busy{};  ///< seconds by scheduler::Lane
  StepTraffic traffic;
  double bound_seconds = 0;  ///< no schedule takes less; 0: not asked for
  Bytes nvme_bound;
  Bytes link_bound;

  /// Budget with which a run can also keep one snapshot.
  Bytes nvme_with_snapshot() const { return minimum.nvme + nvme_for_good; }
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  scheduler::Lane binding() const;
  /// Of the step, in which the binding lane is busy.
  double binding_share() const { return busy[static_cast<size_t>(binding())] / seconds; }
};

enum class PlanDepth : uint8_t {
  quick,  ///< the second step after everything was at home, no bound
  full,   ///< a step in the steady state, with the bound
};

/// Plans the run as Engine does, and compiles its steps as it would with the rates of the options.
/// Throws as make_memory_plan(). Safe to call from several threads.
StepPlan plan_step(const PlanQuestion& question, PlanDepth depth);

/// What the run needs at least; the host's share goes with the smallest device budget.
MinimumBudgets minimum_of(const PlanQuestion& question);

/// A plan, or why there is none.
struct PlanAnswer {
  std::optional<StepPlan> plan;
  std::string refusal;  ///< of a run that does not fit, where there is no plan
};

/// Plans every question on the threads of the machine; answers in their order. Errors other than
/// CapacityError are thrown.
std::vector<PlanAnswer> plan_all(const std::vector<PlanQuestion>& questions, PlanDepth depth);

}  // namespace headrace::engine
