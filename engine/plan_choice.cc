#include "engine/plan_choice.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/for_each_parallel.h"
#include "engine/shard_choice.h"
#include "engine/vocabulary_tiles.h"

namespace headrace::engine {

using scheduler::PolicyEffort;

namespace {

/// A shard's state, gradient and I/O in flight should leave room for others in the host budget.
Elements choose_shard(const MemoryRequest& request, Bytes host_objects, Elements smallest) {
  constexpr int64_t kBytesPerElement = 16;
  constexpr int64_t kShardsInFlight = 8;
  const Elements by_budget(host_objects.count() / (kBytesPerElement * kShardsInFlight));
  return std::max(smallest, std::min(request.sub_group_size, by_budget));
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
      request.offload_optimizer == Tier::nvme && !request.in_place() && offload_ratio(request) == 1;
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

/// The plan with the largest shards that fit in this order with tiles of one size; empty where none
/// do.
std::optional<MemoryPlan> fit_with_tiles(const PlanInput& input, StepOrder order, Bytes host_arena,
                                         int64_t tile_rows, const model::BlockCut& cut) {
  const Elements smallest = smallest_shard(input.config, input.request);
  Elements shard = choose_shard(input.request, host_arena, smallest);
  for (;;) {
    MemoryPlan plan = lay_out(input, {shard, tile_rows, cut}, order, requested_levels(input));
    // Smaller shards make neither what lives in the host for good smaller, nor what is on nvme.
    if (slot_sum(plan.layout, Tier::host) > input.request.host_memory ||
        plan.minimum_nvme > input.request.nvme_budget) {
      return std::nullopt;
    }
    if (fit_budgets(plan, input.request)) {
      return plan;
    }
    if (shard == smallest) {
      return std::nullopt;
    }
    shard = std::max(shard / 2, smallest);
  }
}

/// Plans for one of several sizes of tiles, none where it does not fit.
using FitSize = std::function<std::vector<MemoryPlan>(size_t choice)>;

/// The plans for the largest tiles that fit, of sizes that are given largest first: fewer
/// operations. Where something has to be cut, also those for tiles of half that size, which leave
/// room to fetch the next tile. Where some fit, so do all that are smaller.
std::vector<MemoryPlan> fit_largest(const std::vector<int64_t>& sizes, const FitSize& fit) {
  std::vector<MemoryPlan> plans;
  if (sizes.empty() || !(plans = fit(0)).empty()) {
    return plans;
  }
  size_t first = 1;
  for (size_t end = sizes.size(); first < end;) {
    const size_t middle = (first + end) / 2;
    if (auto found = fit(middle); !found.empty()) {
      plans = std::move(found);
      end = middle;
    } else {
      first = middle + 1;
    }
  }
  for (size_t half = first; !plans.empty() && half < sizes.size(); ++half) {
    if (sizes[half] * 2 <= sizes[first]) {
      std::vector<MemoryPlan> found = fit(half);
      std::move(found.begin(), found.end(), std::back_inserter(plans));
      break;
    }
  }
  return plans;
}

/// Plans in this order with blocks of one cut and the largest vocabulary tiles that fit.
std::vector<MemoryPlan> fit_with_cut(const PlanInput& input, StepOrder order, Bytes host_arena,
                                     const model::BlockCut& cut) {
  const std::vector<int64_t> rows = vocab_tile_choices(input.config, input.needs.logits_tile);
  return fit_largest(rows, [&](size_t choice) {
    std::vector<MemoryPlan> plans;
    if (auto plan = fit_with_tiles(input, order, host_arena, rows[choice], cut)) {
      plans.push_back(std::move(*plan));
    }
    return plans;
  });
}

/// Plans in this order with the largest tiles of blocks that fit.
std::vector<MemoryPlan> fit_with_tiles_of_blocks(const PlanInput& input, StepOrder order,
                                                 Bytes host_arena) {
  const std::vector<model::BlockCut> cuts = allowed_cuts(input);
  std::vector<int64_t> rows(cuts.size());
  std::transform(cuts.begin(), cuts.end(), rows.begin(),
                 [](const model::BlockCut& cut) { return cut.mlp_rows; });
  return fit_largest(rows, [&](size_t choice) {
    // The first are whole blocks, which do not fit.
    return choice == 0 ? std::vector<MemoryPlan>()
                       : fit_with_cut(input, order, host_arena, cuts[choice]);
  });
}

/// The plan of a layout with other levels and shards, in the same order, if it fits.
std::optional<MemoryPlan> laid_out_like(const PlanInput& input, const ModelLayout& layout,
                                        Elements shard_max, const RecomputeLevels& levels) {
  const StepOrder order{layout.order, layout.update_mode, layout.accumulates_on_device};
  MemoryPlan other = lay_out(input, {shard_max, layout.tile_rows, layout.cut}, order, levels);
  return fit_budgets(other, input.request) ? std::optional(std::move(other)) : std::nullopt;
}

/// Each plan, and after it the same with shards of a quarter: some orders are slow with large ones
/// only.
std::vector<MemoryPlan> with_quarter_shards(const PlanInput& input, std::vector<MemoryPlan> plans) {
  const Elements smallest = smallest_shard(input.config, input.request);
  std::vector<MemoryPlan> all;
  for (MemoryPlan& plan : plans) {
    const auto size = cut_shards(plan.layout, 4, smallest);
    auto other =
        size ? laid_out_like(input, plan.layout, *size, plan.layout.recompute) : std::nullopt;
    all.push_back(std::move(plan));
    if (other) {
      all.push_back(std::move(*other));
    }
  }
  return all;
}

/// In all allowed orders. Cut blocks round otherwise than whole ones: no run has them that can do
/// without.
std::vector<MemoryPlan> fit_in_orders(const PlanInput& input, Bytes host_arena) {
  std::vector<MemoryPlan> plans;
  for (const bool cuts_blocks : {false, true}) {
    for (const StepOrder& order : allowed_orders(input.request)) {
      std::vector<MemoryPlan> found = cuts_blocks
                                          ? fit_with_tiles_of_blocks(input, order, host_arena)
                                          : fit_with_cut(input, order, host_arena, {});
      std::move(found.begin(), found.end(), std::back_inserter(plans));
    }
    if (!plans.empty()) {
      break;
    }
  }
  HR_CHECK(!plans.empty(), "the smallest shards fit and then did not");
  return plans;
}

/// Of the first step at assumed rates. Its schedule stays with the plan.
double predicted_seconds(MemoryPlan& plan, const MemoryRequest& request) {
  const auto input = compile_input(plan, plan.usual_step(), request.rates, plan.homes);
  if (plan.first_schedule == nullptr) {
    const auto policy = scheduler::make_optimal_policy(request.is_quick ? PolicyEffort::quick
                                                                        : PolicyEffort::planning);
    plan.first_schedule = std::make_shared<const scheduler::Schedule>(policy->compile(input));
  }
  return scheduler::simulate(input, *plan.first_schedule).seconds;
}

/// The same by few policies, which are enough to compare.
double compared_seconds(MemoryPlan& plan, const MemoryRequest& request) {
  if (request.is_quick) {
    return predicted_seconds(plan, request);
  }
  const auto input = compile_input(plan, plan.usual_step(), request.rates, plan.homes);
  const auto policy = scheduler::make_optimal_policy(PolicyEffort::quick);
  return scheduler::simulate(input, policy->compile(input)).seconds;
}

/// What steps take on average, with the worth of their bytes, and the last of them.
struct SteadySteps {
  double cost = 0;
  CompiledStep last;
};

/// Of the steps after the first, which left `left`: each finds what the one before left, of which
/// smaller shards leave other parts.
SteadySteps steady_steps(const scheduler::Policy& policy, scheduler::CompileInput input,
                         const std::vector<scheduler::Residency>& left) {
  constexpr int kSteps = 3;
  SteadySteps steps;
  input.initial = left;
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0) {
      input.initial = steps.last.schedule.final;
    }
    steps.last.schedule = policy.compile(input);
    steps.cost += (scheduler::simulate(input, steps.last.schedule).seconds +
                   scheduler::drive_cost(input.rates, steps.last.schedule)) /
                  kSteps;
  }
  steps.last.initial = std::move(input.initial);
  return steps;
}

/// The fastest plan of the preferred order of accumulation, if it is about as fast as the fastest
/// of all, else of the next one. The plans are in order of preference.
MemoryPlan fastest(std::vector<MemoryPlan> plans, const MemoryRequest& request) {
  constexpr double kAboutAsFast = 1.1;  // the rates are assumed
  if (plans.size() == 1) {
    return std::move(plans.front());
  }
  std::vector<double> seconds(plans.size());
  for_each_parallel(plans.size(),
                    [&](size_t i) { seconds[i] = compared_seconds(plans[i], request); });
  const double enough = kAboutAsFast * *std::min_element(seconds.begin(), seconds.end());
  const auto first =
      std::find_if(seconds.begin(), seconds.end(), [&](double each) { return each <= enough; });
  auto chosen = static_cast<size_t>(first - seconds.begin());
  const ModelLayout& preferred = plans[chosen].layout;
  for (size_t i = chosen + 1; i < plans.size(); ++i) {
    const ModelLayout& other = plans[i].layout;
    const bool same_accumulation = other.order == preferred.order &&
                                   other.accumulates_on_device == preferred.accumulates_on_device;
    // Smaller shards take more operations.
    const double enough_faster =
        other.shard_max < plans[chosen].layout.shard_max ? kSavingIsFasterBy : 1;
    if (same_accumulation && seconds[i] < enough_faster * seconds[chosen]) {
      chosen = i;
    }
  }
  return std::move(plans[chosen]);
}

/// The plan of a layout with other levels, in the same order and shards, if it fits and all saved
/// values can be above nvme at once.
std::optional<MemoryPlan> with_levels(const PlanInput& input, const ModelLayout& layout,
                                      const RecomputeLevels& levels) {
  auto other = laid_out_like(input, layout, layout.shard_max, levels);
  const Bytes for_good = slot_sum(layout, Tier::device) + slot_sum(layout, Tier::host);
  if (!other ||
      state_bytes(other->layout).saved + for_good > other->device_arena + other->host_arena) {
    return std::nullopt;
  }
  return other;
}

/// Leaves open only what the request does. Where the same transfers with nothing computed again
/// would take as long, there is nothing to gain, and no other plan is made.
MemoryPlan with_recompute_chosen(const PlanInput& input, MemoryPlan plan) {
  if (input.request.recompute || plan.layout.cut.is_cut() ||
      input.needs.saved[model::Recompute::none] == Bytes(0)) {
    return plan;
  }
  const double seconds = predicted_seconds(plan, input.request);
  StepTrace at_best = plan.usual_step();
  for (size_t i = 0; i < at_best.operations.size(); ++i) {
    if (at_best.operations[i].kind == StepKind::block_backward) {
      at_best.trace.operations[i].seconds = input.work.block_backward[model::Recompute::none];
    }
  }
  const auto best_input = compile_input(plan, at_best, input.request.rates, plan.homes);
  if (scheduler::simulate(best_input, *plan.first_schedule).seconds >=
      kSavingIsFasterBy * seconds) {
    return plan;
  }
  const ModelLayout layout = plan.layout;
  RecomputeTrials trials;
  trials.plan_with = [&](const RecomputeLevels& levels) {
    return with_levels(input, layout, levels);
  };
  trials.seconds = [&](MemoryPlan& other) { return predicted_seconds(other, input.request); };
  return choose_recompute(std::move(plan), seconds, trials);
}

/// Of the largest shards that fit the plan's order and tiles, or smaller ones.
MemoryPlan with_shards_chosen(const PlanInput& input, MemoryPlan plan, Bytes host_arena) {
  if (input.request.is_quick) {
    return plan;
  }
  const ModelLayout layout = plan.layout;
  const StepOrder order{layout.order, layout.update_mode, layout.accumulates_on_device};
  auto whole = fit_with_tiles(input, order, host_arena, layout.tile_rows, layout.cut);
  if (whole && whole->layout.shard_max != layout.shard_max) {
    plan = std::move(*whole);
  }
  ShardTrials trials;
  trials.smallest = smallest_shard(input.config, input.request);
  trials.plan_with = [&](Elements shard_max) {
    return laid_out_like(input, layout, shard_max, layout.recompute);
  };
  const auto first_step = [&](const MemoryPlan& other) {
    return compile_input(other, other.usual_step(), input.request.rates, other.homes);
  };
  trials.rough_cost = [&](const MemoryPlan& other) {
    const auto policy = scheduler::make_optimal_policy(PolicyEffort::quick);
    const auto first = first_step(other);
    return steady_steps(*policy, first, policy->compile(first).final).cost;
  };
  trials.cost = [&](MemoryPlan& other) {
    predicted_seconds(other, input.request);
    SteadySteps steps = steady_steps(*scheduler::make_optimal_policy(PolicyEffort::planning),
                                     first_step(other), other.first_schedule->final);
    other.late_step = std::make_shared<const CompiledStep>(std::move(steps.last));
    return steps.cost;
  };
  return choose_shards(std::move(plan), trials);
}

/// For the request's share of the optimizer, or for all of it.
MemoryPlan fastest_of_ratio(const PlanInput& input, const MemoryPlan& smallest) {
  const Bytes host_arena = smallest.host_arena;
  MemoryPlan plan =
      fastest(with_quarter_shards(input, fit_in_orders(input, host_arena)), input.request);
  plan = with_recompute_chosen(input, with_shards_chosen(input, std::move(plan), host_arena));
  plan.minimum_device = smallest.minimum_device;
  plan.minimum_host = smallest.minimum_host;
  return plan;
}

/// Device memory that a plan leaves idle can hold optimizer state, which then needs no link.
MemoryPlan with_ratio_chosen(const PlanInput& input, MemoryPlan whole) {
  constexpr int kSteps = 16;
  MemoryRequest request = input.request;
  const PlanInput other{input.config, input.dtype, input.shape, input.needs, input.work, request};
  const auto smallest_with = [&](int sixteenths) {
    request.offload_ratio = static_cast<double>(kSteps - sixteenths) / kSteps;
    return smallest_that_fits(other);
  };
  int most = kSteps;
  std::optional<MemoryPlan> smallest;
  while (most > 0 && !(smallest = smallest_with(most))) {
    --most;
  }
  if (!smallest) {
    return whole;
  }
  double seconds = predicted_seconds(whole, request);
  for (const int kept : {most, most / 2}) {
    if (kept != most) {
      smallest = kept > 0 ? smallest_with(kept) : std::nullopt;
    }
    if (!smallest) {
      continue;
    }
    MemoryPlan plan = fastest_of_ratio(other, *smallest);
    if (plan.layout.cut.is_cut() && !whole.layout.cut.is_cut()) {
      continue;
    }
    const double faster = predicted_seconds(plan, request);
    if (faster < kSavingIsFasterBy * seconds) {
      plan.minimum_device = whole.minimum_device;
      plan.minimum_host = whole.minimum_host;
      seconds = faster;
      whole = std::move(plan);
    }
  }
  return whole;
}

}  // namespace

MemoryPlan choose_plan(const PlanInput& input, const MemoryPlan& smallest) {
  const MemoryRequest& request = input.request;
  MemoryPlan plan = fastest_of_ratio(input, smallest);
  const bool is_open = !request.offload_ratio && request.device_memory &&
                       request.offload_optimizer == Tier::host && request.can_update_on_device();
  return is_open ? with_ratio_chosen(input, std::move(plan)) : std::move(plan);
}

}  // namespace headrace::engine
