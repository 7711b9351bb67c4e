#include "engine/planner/step_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/for_each_parallel.h"
#include "engine/rounds.h"
#include "scheduler/lower_bound.h"

namespace headrace::engine {

namespace {

/// Steps in a row after which the residency that a step finds hardly changes any more.
constexpr int kRoundsToSteadyState = 4;

/// Whether a run compiles its steps as the choice of its plan does, whose schedules then count;
/// for long traces a run makes more plans (PolicyEffort::planning).
bool compiles_like_choice(const EngineOptions& options) {
  return options.policy == "optimal" && options.memory.rates.direct_share == 0;
}

CompiledStep quick_step(const MemoryPlan& plan, const EngineOptions& options) {
  const bool is_like_choice = compiles_like_choice(options);
  const auto policy = is_like_choice
                          ? scheduler::make_optimal_policy(scheduler::PolicyEffort::quick)
                          : make_policy(options, plan.layout);
  const scheduler::Rates& rates = options.memory.rates;
  const StepTrace& trace = plan.usual_step();
  CompiledStep step;
  step.initial = is_like_choice && plan.first_schedule != nullptr
                     ? plan.first_schedule->final
                     : policy->compile(compile_input(plan, trace, rates, plan.homes)).final;
  step.schedule = policy->compile(compile_input(plan, trace, rates, step.initial));
  return step;
}

CompiledStep late_step(const MemoryPlan& plan, const EngineOptions& options) {
  if (plan.late_step != nullptr && compiles_like_choice(options)) {
    return *plan.late_step;
  }
  Rounds rounds(plan, options);
  CompiledStep step;
  for (int round = 0; round < kRoundsToSteadyState; ++round) {
    if (round > 0 && rounds.residency() == step.initial) {
      break;
    }
    step.initial = rounds.residency();
    step.schedule = rounds.compile(plan.usual_step()).schedule;
  }
  return step;
}

void set_memory(const MemoryPlan& plan, const scheduler::Schedule& schedule, StepPlan& result) {
  const ModelLayout& layout = plan.layout;
  result.placement = layout.placement;
  result.state = state_bytes(layout);
  result.recompute = layout.recompute;
  result.vocab_tiles = layout.vocab_tiles;
  result.vocab_tile_entries = model::vocabulary_range(layout.modules.front().spec).count;
  result.attention_tiles = layout.attention_tiles;
  result.mlp_tiles = layout.mlp_tiles;
  result.order = layout.order;
  result.update_mode = layout.update_mode;
  result.accumulates_on_device = layout.accumulates_on_device;
  for (const ModuleObjects& module : layout.modules) {
    result.shards += module.shards.size();
  }
  result.fixed = plan.fixed_bytes();
  result.has_device = plan.has_device();
  result.device_arena = plan.device_arena;
  result.host_arena = plan.host_arena;
  result.minimum = {plan.minimum_device, plan.minimum_host, plan.minimum_nvme};
  (plan.has_device() ? result.peak_device : result.peak_host) = result.fixed;
  result.peak_device += schedule.peak_device;
  result.peak_host += schedule.peak_host;
  for (const scheduler::ObjectFacts& object : layout.objects) {
    result.everything += object.size;
    result.nvme_for_good += object.home == Tier::nvme ? object.size : Bytes(0);
  }
}

void set_time(const scheduler::CompileInput& input, const scheduler::Schedule& schedule,
              PlanDepth depth, StepPlan& result) {
  result.seconds = scheduler::simulate(input, schedule).seconds;
  const scheduler::StepBound lanes = scheduler::channel_bound(input, schedule);
  std::copy(std::begin(lanes.lane_seconds), std::end(lanes.lane_seconds), result.busy.begin());
  result.traffic = {schedule.nvme_read, schedule.nvme_write, schedule.host_to_device,
                    schedule.device_to_host};
  if (depth == PlanDepth::full) {
    const scheduler::LowerBound bound = scheduler::lower_bound(input);
    result.bound_seconds = bound.seconds;
    result.nvme_bound = bound.nvme;
    result.link_bound = bound.link;
  }
}

}  // namespace

scheduler::Lane StepPlan::binding() const {
  return static_cast<scheduler::Lane>(std::max_element(busy.begin(), busy.end()) - busy.begin());
}

StepPlan plan_step(const PlanQuestion& question, PlanDepth depth) {
  const EngineOptions& options = question.options;
  const auto device = device::make_cpu_device();
  EngineOptions planned = options;
  planned.memory.is_quick = depth == PlanDepth::quick;
  const MemoryPlan plan = plan_memory(*make_network(question.config, options, *device), planned);
  const CompiledStep step =
      depth == PlanDepth::full ? late_step(plan, options) : quick_step(plan, options);
  StepPlan result;
  result.parameters = model::parameter_count(question.config);
  result.tokens = question.tokens_per_step();
  set_memory(plan, step.schedule, result);
  set_time(compile_input(plan, plan.usual_step(), options.memory.rates, step.initial),
           step.schedule, depth, result);
  return result;
}

MinimumBudgets minimum_of(const PlanQuestion& question) {
  const EngineOptions& options = question.options;
  const auto device = device::make_cpu_device();
  return minimum_budgets(question.config, options.dtype, options.shape,
                         network_needs(*make_network(question.config, options, *device)),
                         options.memory);
}

std::vector<PlanAnswer> plan_all(const std::vector<PlanQuestion>& questions, PlanDepth depth) {
  std::vector<PlanAnswer> answers(questions.size());
  for_each_parallel(questions.size(), [&](size_t i) {
    try {
      answers[i].plan = plan_step(questions[i], depth);
    } catch (const CapacityError& error) {
      answers[i].refusal = error.what();
    }
  });
  return answers;
}

}  // namespace headrace::engine
