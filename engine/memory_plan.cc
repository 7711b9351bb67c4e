#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/plan_choice.h"
#include "engine/plan_layout.h"

namespace headrace::engine {

namespace {

std::string remedies(const MemoryRequest& request, Tier tier) {
  std::string text = fmt::format("give more with --{}-memory", to_string(tier));
  text += ", or lower the sequence length or train_micro_batch_size_per_gpu";
  if (tier == Tier::device && offload_ratio(request) < 1) {
    text += ", or raise zero_optimization.offload_optimizer.ratio";
  }
  if (request.recompute && request.recompute != model::Recompute::block) {
    text += ", or set headrace.recompute to block";
  }
  if (request.offload_param != Tier::nvme) {
    text += ", or set zero_optimization.offload_param.device";
  }
  if (request.offload_optimizer != Tier::nvme) {
    text += ", or set zero_optimization.offload_optimizer.device";
  }
  if (!request.nvme_activations) {
    text += tier == Tier::device && !request.host_activations
                ? ", or set activation_checkpointing.cpu_checkpointing"
                : ", or set headrace.activation_nvme";
  }
  return text;
}

void require(Bytes given, Bytes minimum, Tier tier, const MemoryRequest& request) {
  if (given >= minimum) {
    return;
  }
  throw CapacityError(
      fmt::format("this run does not fit: the {} tier needs at least {} ({} bytes), but its budget "
                  "is {} ({} bytes); {}",
                  to_string(tier), format_bytes(minimum), minimum.count(), format_bytes(given),
                  given.count(), remedies(request, tier)));
}

void require_disk(const MemoryPlan& plan, const MemoryRequest& request) {
  if (request.nvme_budget >= plan.minimum_nvme) {
    return;
  }
  throw CapacityError(fmt::format(
      "this run does not fit: it needs at least {} ({} bytes) on nvme (the committed state, the "
      "next step's beside it, and what the host budget cannot hold of gradients and activations), "
      "but the budget is {} ({} bytes) in {}; raise --nvme-budget, free disk space, or offload "
      "less to nvme",
      format_bytes(plan.minimum_nvme), plan.minimum_nvme.count(), format_bytes(request.nvme_budget),
      request.nvme_budget.count(), request.nvme_path));
}

std::string_view describe(UpdateMode mode) {
  switch (mode) {
    case UpdateMode::after_norm:
      return "after backward";
    case UpdateMode::during_backward:
      return "during backward";
    case UpdateMode::speculative:
      return "during backward, done again where a step is clipped or skipped";
  }
  return "";
}

/// Says what is too small for even the smallest plan.
[[noreturn]] void refuse(const PlanInput& input) {
  const MemoryRequest& request = input.request;
  const Bytes device_memory = request.device_memory.value_or(Bytes(0));
  MemoryPlan smallest = smallest_plan(input);
  if (smallest.has_device()) {
    require(device_memory, smallest.minimum_device, Tier::device, request);
  }
  fit_host(smallest, device_memory, request.host_memory);
  require(request.host_memory, smallest.minimum_host, Tier::host, request);
  smallest.minimum_nvme = least_nvme(input);
  require_disk(smallest, request);
  HR_CHECK(false, "a plan that needs no more than the budgets does not fit them");
}

}  // namespace

NetworkNeeds network_needs(const model::Network& network) {
  const Bytes others = std::max({network.block_forward_workspace(),
                                 network.block_backward_workspace(), network.embed_workspace()});
  NetworkNeeds needs{std::max(others, network.head_workspace()), network.constant_bytes(),
                     std::max(others, network.head_tile_workspace()), network.vocab_tile()};
  for (const auto level : {model::Recompute::none, model::Recompute::mlp}) {
    needs.saved[level] = network.saved_bytes(level);
  }
  needs.block_pieces = network.block_pieces();
  const Bytes tile = std::max(network.block_tile_workspace(), network.embed_workspace());
  needs.cut_workspace = std::max(tile, network.head_workspace());
  needs.cut_tiled_workspace = std::max(tile, network.head_tile_workspace());
  needs.block_sum = network.block_sum_bytes();
  return needs;
}

Placement make_placement(const MemoryRequest& request) {
  const bool uses_nvme = request.offload_param == Tier::nvme ||
                         request.offload_optimizer == Tier::nvme || request.nvme_activations;
  if (uses_nvme && !request.has_nvme) {
    throw InputError(
        "the configuration offloads to nvme but names no folder: give --nvme-path, or nvme_path in "
        "offload_param, offload_optimizer or the headrace block");
  }
  Placement placement;
  placement.compute = request.device_memory ? Tier::device : Tier::host;
  placement.weights = request.offload_param.value_or(placement.compute);
  placement.optimizer = request.offload_optimizer.value_or(
      request.can_update_on_device() ? placement.compute : Tier::host);
  placement.gradients = placement.optimizer;
  placement.activations = placement.compute;
  if (request.host_activations) {
    placement.activations = Tier::host;
  }
  if (request.nvme_activations) {
    placement.activations = Tier::nvme;
  }
  if (!request.spills) {
    placement.gradients = std::min(placement.gradients, Tier::host);
    placement.activations = std::min(placement.activations, Tier::host);
  }
  return placement;
}

MemoryPlan make_memory_plan(const model::ModelConfig& config, DType dtype,
                            const model::BatchShape& shape, const NetworkNeeds& needs,
                            const WorkEstimate& work, const MemoryRequest& request) {
  const PlanInput input{config, dtype, shape, needs, work, request};
  MemoryRequest in_memory = request;
  in_memory.spills = false;
  const PlanInput without_spills{config, dtype, shape, needs, work, in_memory};
  for (const PlanInput* each : {&input, &without_spills}) {
    if (const std::optional<MemoryPlan> smallest = smallest_that_fits(*each)) {
      MemoryPlan plan = choose_plan(*each, *smallest);
      if (!request.is_quick && plan.minimum_nvme > Bytes(0)) {
        plan.minimum_nvme = least_nvme(input);
      }
      return plan;
    }
  }
  refuse(input);
}

scheduler::CompileInput compile_input(const MemoryPlan& plan, const StepTrace& trace,
                                      const scheduler::Rates& rates,
                                      std::vector<scheduler::Residency> initial) {
  scheduler::CompileInput input;
  input.trace = &trace.trace;
  input.objects = &plan.layout.objects;
  input.budgets.device = plan.device_arena;
  input.budgets.host = plan.host_arena;
  input.rates = rates;
  input.initial = std::move(initial);
  return input;
}

MinimumBudgets minimum_budgets(const model::ModelConfig& config, DType dtype,
                               const model::BatchShape& shape, const NetworkNeeds& needs,
                               const MemoryRequest& request) {
  const WorkEstimate work;
  const MemoryPlan plan = smallest_plan({config, dtype, shape, needs, work, request});
  return {plan.minimum_device, plan.minimum_host, plan.minimum_nvme};
}

std::string describe(const MemoryPlan& plan, const MemoryRequest& request) {
  const StateBytes state = state_bytes(plan.layout);
  const Placement& placement = plan.layout.placement;
  std::string text = "Memory plan\n";
  const auto row = [&](std::string_view what, Bytes size, std::string_view where) {
    text += fmt::format("  {:<22} {:>10}   {}\n", what, format_bytes(size), where);
  };
  row("weights", state.weights, fmt::format("home {}", to_string(placement.weights)));
  row("optimizer state", state.optimizer,
      fmt::format("home {}{}", to_string(placement.optimizer),
                  state.optimizer_on_device > Bytes(0) && placement.optimizer != Tier::device
                      ? ", " + format_bytes(state.optimizer_on_device) + " of it on device"
                      : ""));
  row("gradients", state.gradients, fmt::format("down to {}", to_string(placement.gradients)));
  row("activations", state.activations,
      fmt::format("down to {}", to_string(placement.activations)));
  row("saved for backward", state.saved, describe(plan.layout.recompute));
  if (request.micro_batches > 1) {
    text += fmt::format(
        "  {:<22} {:>10}   {} micro-batches a step\n", "accumulation",
        plan.layout.order == AccumulationOrder::layer_major ? "layer-major" : "micro-batch-major",
        request.micro_batches);
  }
  if (plan.layout.vocab_tiles > 1) {
    text += fmt::format("  {:<22} {:>10}   of {} entries each\n", "vocabulary tiles",
                        plan.layout.vocab_tiles,
                        model::vocabulary_range(plan.layout.modules.front().spec).count);
  }
  if (plan.layout.cut.is_cut()) {
    text += fmt::format("  {:<22} {:>10}   {} of attention, {} of the MLP\n", "tiles of a block",
                        plan.layout.attention_tiles + plan.layout.mlp_tiles,
                        plan.layout.attention_tiles, plan.layout.mlp_tiles);
  }
  text += fmt::format("  {:<22} {:>10}   {}\n", "optimizer updates", "",
                      describe(plan.layout.update_mode));
  row("workspace", plan.fixed_bytes(), fmt::format("in {}", to_string(placement.compute)));
  if (plan.has_device()) {
    row("device budget", *request.device_memory,
        fmt::format("minimum {}", format_bytes(plan.minimum_device)));
  }
  row("host budget", request.host_memory,
      fmt::format("minimum {}", format_bytes(plan.minimum_host)));
  return text;
}

}  // namespace headrace::engine
