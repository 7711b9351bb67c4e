#include "engine/plan_choice.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/vocabulary_tiles.h"

namespace headrace::engine {

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
                                         int64_t tile_rows) {
  const Bytes device_memory = input.request.device_memory.value_or(Bytes(0));
  const Elements smallest = smallest_shard(input.config, input.request);
  Elements shard = choose_shard(input.request, host_arena, smallest);
  for (;;) {
    MemoryPlan plan = lay_out(input, {shard, tile_rows}, order, requested_levels(input));
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
    if (shard == smallest) {
      return std::nullopt;
    }
    shard = std::max(shard / 2, smallest);
  }
}

/// The plan with the largest vocabulary tiles that fit in this order: fewer operations. Where the
/// vocabulary has to be cut, also one with tiles of half that size, which leave room to fetch the
/// next tile. Where some fit, so do all that are smaller.
std::vector<MemoryPlan> fit_in_order(const PlanInput& input, StepOrder order, Bytes host_arena) {
  const std::vector<int64_t> choices = vocab_tile_choices(input.config, input.needs.logits_tile);
  const auto fit = [&](size_t choice) {
    return fit_with_tiles(input, order, host_arena, choices[choice]);
  };
  std::vector<MemoryPlan> plans;
  std::optional<MemoryPlan> largest = fit(0);
  size_t first = largest ? 0 : 1;
  for (size_t end = largest ? 0 : choices.size(); first < end;) {
    const size_t middle = (first + end) / 2;
    if (auto plan = fit(middle)) {
      largest = std::move(plan);
      end = middle;
    } else {
      first = middle + 1;
    }
  }
  if (!largest) {
    return plans;
  }
  plans.push_back(std::move(*largest));
  for (size_t half = first; first > 0 && half < choices.size(); ++half) {
    if (choices[half] * 2 <= choices[first]) {
      if (auto plan = fit(half)) {
        plans.push_back(std::move(*plan));
      }
      break;
    }
  }
  return plans;
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

/// What the first step is expected to do.
struct Prediction {
  scheduler::Schedule schedule;
  double seconds = 0;
};

Prediction predict(const MemoryPlan& plan, const scheduler::Rates& rates) {
  const scheduler::CompileInput compile = first_input(plan, rates);
  Prediction result;
  result.schedule = scheduler::make_optimal_policy()->compile(compile);
  result.seconds = scheduler::simulate(compile, result.schedule).seconds;
  return result;
}

double predicted_seconds(const MemoryPlan& plan, const scheduler::Rates& rates) {
  return predict(plan, rates).seconds;
}

struct Candidate {
  MemoryPlan plan;
  std::optional<Prediction> prediction;  ///< where it was needed
};

/// The fastest plan of the preferred order of accumulation, if it is about as fast as the fastest
/// of all, else of the next one. The plans are in order of preference.
Candidate fastest(std::vector<MemoryPlan> plans, const scheduler::Rates& rates) {
  constexpr double kAboutAsFast = 1.1;  // the rates are assumed
  if (plans.size() == 1) {
    return {std::move(plans.front()), std::nullopt};
  }
  std::vector<Prediction> predictions;
  predictions.reserve(plans.size());
  double least = std::numeric_limits<double>::infinity();
  for (const MemoryPlan& plan : plans) {
    predictions.push_back(predict(plan, rates));
    least = std::min(least, predictions.back().seconds);
  }
  const auto first = std::find_if(predictions.begin(), predictions.end(), [&](const auto& each) {
    return each.seconds <= kAboutAsFast * least;
  });
  auto chosen = static_cast<size_t>(first - predictions.begin());
  const ModelLayout& preferred = plans[chosen].layout;
  for (size_t i = chosen + 1; i < plans.size(); ++i) {
    const ModelLayout& other = plans[i].layout;
    const bool same_accumulation = other.order == preferred.order &&
                                   other.accumulates_on_device == preferred.accumulates_on_device;
    if (same_accumulation && predictions[i].seconds < predictions[chosen].seconds) {
      chosen = i;
    }
  }
  return {std::move(plans[chosen]), std::move(predictions[chosen])};
}

/// The plan of a layout with other levels, in the same order and shards, if it fits and all saved
/// values can be above nvme at once.
std::optional<MemoryPlan> with_levels(const PlanInput& input, const ModelLayout& layout,
                                      const RecomputeLevels& levels) {
  const StepOrder order{layout.order, layout.update_mode, layout.accumulates_on_device};
  MemoryPlan other = lay_out(input, {layout.shard_max, layout.tile_rows}, order, levels);
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
MemoryPlan with_recompute_chosen(const PlanInput& input, Candidate candidate) {
  MemoryPlan& plan = candidate.plan;
  if (input.request.recompute || input.needs.saved[model::Recompute::none] == Bytes(0)) {
    return std::move(plan);
  }
  const Prediction now =
      candidate.prediction ? std::move(*candidate.prediction) : predict(plan, input.request.rates);
  scheduler::CompileInput compile = first_input(plan, input.request.rates);
  scheduler::Trace at_best = *compile.trace;
  for (size_t i = 0; i < at_best.operations.size(); ++i) {
    if (first_step(plan).operations[i].kind == StepKind::block_backward) {
      at_best.operations[i].seconds = input.work.block_backward[model::Recompute::none];
    }
  }
  compile.trace = &at_best;
  if (scheduler::simulate(compile, now.schedule).seconds >= kSavingIsFasterBy * now.seconds) {
    return std::move(plan);
  }
  const ModelLayout layout = plan.layout;
  RecomputeTrials trials;
  trials.plan_with = [&](const RecomputeLevels& levels) {
    return with_levels(input, layout, levels);
  };
  trials.seconds = [&](const MemoryPlan& other) {
    return predicted_seconds(other, input.request.rates);
  };
  return choose_recompute(std::move(plan), now.seconds, trials);
}

/// For the request's share of the optimizer, or for all of it.
MemoryPlan fastest_of_ratio(const PlanInput& input, const MemoryPlan& smallest) {
  const std::optional<UpdateMode> preferred = input.request.preferred_updates;
  std::vector<MemoryPlan> plans;
  const auto add_orders = [&](bool are_preferred) {
    for (const StepOrder& order : allowed_orders(input.request)) {
      if ((order.updates == preferred.value_or(order.updates)) != are_preferred) {
        continue;
      }
      for (MemoryPlan& plan : fit_in_order(input, order, smallest.host_arena)) {
        plans.push_back(std::move(plan));
      }
    }
  };
  add_orders(true);
  if (plans.empty()) {
    add_orders(false);
  }
  HR_CHECK(!plans.empty(), "the smallest shards fit and then did not");
  MemoryPlan plan = with_recompute_chosen(input, fastest(std::move(plans), input.request.rates));
  plan.minimum_device = smallest.minimum_device;
  plan.minimum_host = smallest.minimum_host;
  return plan;
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
  const auto is_possible = [&](int sixteenths) {
    keep_on_device(sixteenths);
    return smallest_that_fits(other).has_value();
  };
  int most = kSteps;
  while (most > 0 && !is_possible(most)) {
    --most;
  }
  std::optional<double> seconds;
  for (const int kept : {most, most / 2}) {
    if (kept == 0) {
      break;
    }
    seconds = seconds ? seconds : predicted_seconds(whole, request.rates);
    keep_on_device(kept);
    const std::optional<MemoryPlan> smallest = smallest_that_fits(other);
    if (!smallest) {
      continue;
    }
    MemoryPlan plan = fastest_of_ratio(other, *smallest);
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

MemoryPlan choose_plan(const PlanInput& input, const MemoryPlan& smallest) {
  const MemoryRequest& request = input.request;
  MemoryPlan plan = fastest_of_ratio(input, smallest);
  const bool is_open =
      !request.offload_ratio && request.device_memory && request.offload_optimizer == Tier::host;
  return is_open ? with_ratio_chosen(input, std::move(plan)) : std::move(plan);
}

}  // namespace headrace::engine
