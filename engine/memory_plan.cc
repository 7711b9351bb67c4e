#include "engine/memory_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "engine/memory_refusal.h"
#include "engine/recompute_choice.h"

namespace headrace::engine {

namespace {

constexpr Bytes kSlotAlignment{4096};

Bytes slot_sum(const ModelLayout& layout, std::optional<Tier> home) {
  Bytes sum;
  for (const scheduler::ObjectFacts& object : layout.objects) {
    if (!home || object.home == home) {
      sum += object.size;
    }
  }
  return sum;
}

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

/// A shard's state, gradient and I/O in flight should leave room for others in the host budget.
Elements choose_shard(const MemoryRequest& request, Bytes host_objects) {
  constexpr int64_t kBytesPerElement = 16;
  constexpr int64_t kShardsInFlight = 8;
  const Elements by_budget(host_objects.count() / (kBytesPerElement * kShardsInFlight));
  return std::max(kStatisticsBlock, std::min(request.sub_group_size, by_budget));
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

}  // namespace

NetworkNeeds network_needs(const model::Network& network) {
  NetworkNeeds needs{
      std::max({network.block_forward_workspace(), network.block_backward_workspace(),
                network.head_workspace(), network.embed_workspace()}),
      network.constant_bytes()};
  for (const auto level : {model::Recompute::none, model::Recompute::mlp}) {
    needs.saved[level] = network.saved_bytes(level);
  }
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
  placement.optimizer = request.offload_optimizer.value_or(placement.compute);
  placement.gradients = placement.optimizer;
  placement.activations = placement.compute;
  if (request.host_activations) {
    placement.activations = Tier::host;
  }
  if (request.nvme_activations) {
    placement.activations = Tier::nvme;
  }
  return placement;
}

namespace {

/// What make_memory_plan works on, so that it can be tried with several shard sizes.
struct PlanInput {
  const model::ModelConfig& config;
  DType dtype;
  const model::BatchShape& shape;
  const NetworkNeeds& needs;
  const WorkEstimate& work;
  const MemoryRequest& request;
};

Bytes round_down(Bytes size) {
  return Bytes(size.count() / kSlotAlignment.count() * kSlotAlignment.count());
}

double offload_ratio(const MemoryRequest& request) {
  return request.device_memory && request.offload_optimizer ? request.offload_ratio.value_or(1) : 1;
}

/// How the operations of a step may be ordered.
struct StepOrder {
  AccumulationOrder accumulation = AccumulationOrder::layer_major;
  UpdateMode updates = UpdateMode::after_norm;
  bool accumulate_on_device = false;
};

/// The level that is asked for; without one the leanest.
RecomputeLevels requested_levels(const PlanInput& input) {
  return RecomputeLevels(static_cast<size_t>(input.config.layers),
                         input.request.recompute.value_or(model::Recompute::block));
}

/// Layout and traces for one shard size, order and choice of what is computed again, with the
/// smallest device budget.
MemoryPlan lay_out(const PlanInput& input, Elements shard_max, StepOrder order,
                   const RecomputeLevels& recompute) {
  MemoryPlan plan;
  plan.tokens = align_up(bytes_for(Elements(input.shape.tokens()) * 2, DType::i32) + Bytes(64),
                         kSlotAlignment);
  plan.workspace = align_up(input.needs.workspace, kSlotAlignment);
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
  options.shard_max = shard_max;
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
  plan.minimum_nvme = slot_sum(plan.layout, Tier::nvme) * (input.request.in_place ? 1 : 2);
  if (order.updates == UpdateMode::speculative && plan.layout.placement.weights != Tier::nvme) {
    // The last checkpoint, beside the values before and after the step.
    plan.minimum_nvme += slot_sum(plan.layout, Tier::nvme);
  }
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

/// Fills the arenas' sizes for a device budget and finds the smallest host budget that goes with
/// it.
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

/// The order that needs the least memory among those that may be chosen.
StepOrder leanest_order(const MemoryRequest& request) {
  // One micro-batch has one order, whatever it is called.
  return {request.accumulation_order.value_or(request.micro_batches == 1
                                                  ? AccumulationOrder::layer_major
                                                  : AccumulationOrder::micro_batch_major),
          UpdateMode::after_norm};
}

/// The update mode that overlaps with backward in this run; empty where there is none.
std::optional<UpdateMode> overlapping_mode(const MemoryRequest& request) {
  if (!request.optimizer_overlap) {
    return std::nullopt;
  }
  if (!request.updates_need_norm) {
    return UpdateMode::during_backward;
  }
  // Only the store keeps the old values of what has been written anew.
  const bool keeps_old =
      request.offload_optimizer == Tier::nvme && !request.in_place && offload_ratio(request) == 1;
  return keeps_old ? std::optional(UpdateMode::speculative) : std::nullopt;
}

/// All orders that may be chosen, the preferred ones first.
std::vector<StepOrder> allowed_orders(const MemoryRequest& request) {
  std::vector<AccumulationOrder> accumulation = {leanest_order(request).accumulation};
  if (!request.accumulation_order && request.micro_batches > 1) {
    accumulation.insert(accumulation.begin(), AccumulationOrder::layer_major);
  }
  const Placement placement = make_placement(request);
  const bool has_way_down = placement.compute != placement.update();
  std::vector<StepOrder> orders;
  for (const AccumulationOrder order : accumulation) {
    const bool on_device =
        has_way_down && order == AccumulationOrder::layer_major && request.micro_batches > 1;
    for (const bool accumulate_on_device : {true, false}) {
      if (accumulate_on_device && !on_device) {
        continue;
      }
      if (const auto mode = overlapping_mode(request)) {
        orders.push_back({order, *mode, accumulate_on_device});
      }
      orders.push_back({order, UpdateMode::after_norm, accumulate_on_device});
    }
  }
  return orders;
}

/// Throws where even the smallest shards do not fit in the leanest order; returns that plan.
MemoryPlan require_fit(const PlanInput& input) {
  const MemoryRequest& request = input.request;
  const Bytes device_memory = request.device_memory.value_or(Bytes(0));
  MemoryPlan smallest =
      lay_out(input, kStatisticsBlock, leanest_order(request), requested_levels(input));
  if (smallest.has_device()) {
    require_budget(device_memory, smallest.minimum_device, Tier::device, request);
  }
  fit_host(smallest, device_memory, request.host_memory);
  require_budget(request.host_memory, smallest.minimum_host, Tier::host, request);
  require_disk(smallest, request);
  return smallest;
}

/// The plan with the largest shards that fit in this order; empty where none do.
std::optional<MemoryPlan> fit_in_order(const PlanInput& input, StepOrder order, Bytes host_arena) {
  const Bytes device_memory = input.request.device_memory.value_or(Bytes(0));
  Elements shard = choose_shard(input.request, host_arena);
  for (;;) {
    MemoryPlan plan = lay_out(input, shard, order, requested_levels(input));
    // Smaller shards make neither what lives in the host for good smaller, nor what is on nvme.
    if (slot_sum(plan.layout, Tier::host) > input.request.host_memory ||
        plan.minimum_nvme > input.request.nvme_budget) {
      return std::nullopt;
    }
    if (plan.minimum_device <= device_memory) {
      fit_host(plan, device_memory, input.request.host_memory);
      if (plan.minimum_host <= input.request.host_memory) {
        return plan;
      }
    }
    if (shard == kStatisticsBlock) {
      return std::nullopt;
    }
    shard = std::max(shard / 2, kStatisticsBlock);
  }
}

/// The first step at assumed rates; of a plan that can speculate, one that does.
const StepTrace& first_step(const MemoryPlan& plan) {
  return plan.speculative ? *plan.speculative : plan.training;
}

scheduler::CompileInput first_input(const MemoryPlan& plan, const scheduler::Rates& rates) {
  scheduler::CompileInput compile;
  compile.rates = rates;
  compile.trace = &first_step(plan).trace;
  compile.objects = &plan.layout.objects;
  compile.budgets.device = plan.device_arena;
  compile.budgets.host = plan.host_arena;
  compile.initial = plan.homes;
  return compile;
}

double predicted_seconds(const MemoryPlan& plan, const scheduler::Rates& rates) {
  const scheduler::CompileInput compile = first_input(plan, rates);
  return scheduler::simulate(compile, scheduler::make_optimal_policy()->compile(compile)).seconds;
}

/// The fastest plan of the preferred order of accumulation, if it is about as fast as the fastest
/// of all, else of the next one. The plans are in order of preference.
MemoryPlan fastest(std::vector<MemoryPlan> plans, const scheduler::Rates& rates) {
  constexpr double kAboutAsFast = 1.1;  // the rates are assumed
  if (plans.size() == 1) {
    return std::move(plans.front());
  }
  std::vector<double> seconds;
  seconds.reserve(plans.size());
  for (const MemoryPlan& plan : plans) {
    seconds.push_back(predicted_seconds(plan, rates));
  }
  const double enough = kAboutAsFast * *std::min_element(seconds.begin(), seconds.end());
  const auto first =
      std::find_if(seconds.begin(), seconds.end(), [&](double each) { return each <= enough; });
  auto chosen = static_cast<size_t>(first - seconds.begin());
  const ModelLayout& preferred = plans[chosen].layout;
  for (size_t i = chosen + 1; i < plans.size(); ++i) {
    const ModelLayout& other = plans[i].layout;
    const bool same_accumulation = other.order == preferred.order &&
                                   other.accumulates_on_device == preferred.accumulates_on_device;
    if (same_accumulation && seconds[i] < seconds[chosen]) {
      chosen = i;
    }
  }
  return std::move(plans[chosen]);
}

/// The plan of a layout with other levels, in the same order and shards, if it fits and all saved
/// values can be above nvme at once.
std::optional<MemoryPlan> with_levels(const PlanInput& input, const ModelLayout& layout,
                                      const RecomputeLevels& levels) {
  const StepOrder order{layout.order, layout.update_mode, layout.accumulates_on_device};
  MemoryPlan other = lay_out(input, layout.shard_max, order, levels);
  const Bytes device_memory = input.request.device_memory.value_or(Bytes(0));
  if (other.minimum_device > device_memory) {
    return std::nullopt;
  }
  fit_host(other, device_memory, input.request.host_memory);
  const Bytes for_good = slot_sum(layout, Tier::device) + slot_sum(layout, Tier::host);
  const bool has_room =
      state_bytes(other.layout).saved + for_good <= other.device_arena + other.host_arena;
  if (other.minimum_host > input.request.host_memory || !has_room) {
    return std::nullopt;
  }
  return other;
}

/// Leaves open only what the request does. Where the same transfers with nothing computed again
/// would take as long, there is nothing to gain, and no other plan is made.
MemoryPlan with_recompute_chosen(const PlanInput& input, MemoryPlan plan) {
  if (input.request.recompute || input.needs.saved[model::Recompute::none] == Bytes(0)) {
    return plan;
  }
  scheduler::CompileInput compile = first_input(plan, input.request.rates);
  const scheduler::Schedule schedule = scheduler::make_optimal_policy()->compile(compile);
  const double seconds = scheduler::simulate(compile, schedule).seconds;
  scheduler::Trace at_best = *compile.trace;
  for (size_t i = 0; i < at_best.operations.size(); ++i) {
    if (first_step(plan).operations[i].kind == StepKind::block_backward) {
      at_best.operations[i].seconds = input.work.block_backward[model::Recompute::none];
    }
  }
  compile.trace = &at_best;
  if (scheduler::simulate(compile, schedule).seconds >= kSavingIsFasterBy * seconds) {
    return plan;
  }
  const ModelLayout layout = plan.layout;
  RecomputeTrials trials;
  trials.plan_with = [&](const RecomputeLevels& levels) {
    return with_levels(input, layout, levels);
  };
  trials.seconds = [&](const MemoryPlan& other) {
    return predicted_seconds(other, input.request.rates);
  };
  return choose_recompute(std::move(plan), seconds, trials);
}

/// The fastest plan for the request's share of the optimizer, or for all of it.
MemoryPlan plan_for_ratio(const PlanInput& input) {
  const MemoryPlan smallest = require_fit(input);
  std::vector<MemoryPlan> plans;
  for (const StepOrder& order : allowed_orders(input.request)) {
    if (auto plan = fit_in_order(input, order, smallest.host_arena)) {
      plans.push_back(std::move(*plan));
    }
  }
  HR_CHECK(!plans.empty(), "the smallest shards fit and then did not");
  MemoryPlan plan = with_recompute_chosen(input, fastest(std::move(plans), input.request.rates));
  plan.minimum_device = smallest.minimum_device;
  plan.minimum_host = smallest.minimum_host;
  return plan;
}

bool fits(const PlanInput& input) {
  MemoryPlan plan =
      lay_out(input, kStatisticsBlock, leanest_order(input.request), requested_levels(input));
  const Bytes device_memory = *input.request.device_memory;
  if (plan.minimum_device > device_memory) {
    return false;
  }
  fit_host(plan, device_memory, input.request.host_memory);
  return plan.minimum_host <= input.request.host_memory;
}

/// Device memory that a plan leaves idle can hold optimizer state, which then needs no link.
MemoryPlan with_ratio_chosen(const PlanInput& input, MemoryPlan whole) {
  constexpr int kSteps = 16;
  constexpr double kFasterBy = 0.99;
  MemoryRequest request = input.request;
  const PlanInput other{input.config, input.dtype, input.shape, input.needs, input.work, request};
  const auto keep_on_device = [&](int sixteenths) {
    request.offload_ratio = static_cast<double>(kSteps - sixteenths) / kSteps;
  };
  int most = kSteps;
  for (; most > 0; --most) {
    keep_on_device(most);
    if (fits(other)) {
      break;
    }
  }
  std::optional<double> seconds;
  for (const int kept : {most, most / 2}) {
    if (kept == 0) {
      break;
    }
    seconds = seconds ? seconds : predicted_seconds(whole, request.rates);
    keep_on_device(kept);
    MemoryPlan plan = plan_for_ratio(other);
    const double faster = predicted_seconds(plan, request.rates);
    if (faster < kFasterBy * *seconds) {
      plan.minimum_device = whole.minimum_device;
      plan.minimum_host = whole.minimum_host;
      seconds = faster;
      whole = std::move(plan);
    }
  }
  return whole;
}

}  // namespace

MemoryPlan make_memory_plan(const model::ModelConfig& config, DType dtype,
                            const model::BatchShape& shape, const NetworkNeeds& needs,
                            const WorkEstimate& work, const MemoryRequest& request) {
  const PlanInput input{config, dtype, shape, needs, work, request};
  MemoryPlan plan = plan_for_ratio(input);
  const bool is_open =
      !request.offload_ratio && request.device_memory && request.offload_optimizer == Tier::host;
  return is_open ? with_ratio_chosen(input, std::move(plan)) : std::move(plan);
}

MinimumBudgets minimum_budgets(const model::ModelConfig& config, DType dtype,
                               const model::BatchShape& shape, const NetworkNeeds& needs,
                               const MemoryRequest& request) {
  const WorkEstimate work;
  const PlanInput input{config, dtype, shape, needs, work, request};
  MemoryPlan plan =
      lay_out(input, kStatisticsBlock, leanest_order(request), requested_levels(input));
  fit_host(plan, plan.minimum_device, Bytes(0));
  return {plan.minimum_device, plan.minimum_host};
}

}  // namespace headrace::engine
