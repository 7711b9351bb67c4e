#include "engine/planner/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace headrace::engine {

namespace {

/// Two significant digits of MiB or GiB, upwards.
Bytes round_up_budget(double bytes) {
  const Bytes unit = bytes >= static_cast<double>(kGiB.count()) ? kGiB : kMiB;
  const double units = bytes / static_cast<double>(unit.count());
  const double step = std::max(1.0, std::pow(10, std::floor(std::log10(units)) - 1));
  return unit * static_cast<int64_t>(std::ceil(units / step) * step);
}

std::string flag_size(Bytes size) {
  return size.count() % kGiB.count() == 0 ? fmt::format("{}GiB", size.count() / kGiB.count())
                                          : fmt::format("{}MiB", size.count() / kMiB.count());
}

Bytes budget_of(const PlanQuestion& question, Tier tier) {
  const MemoryRequest& memory = question.options.memory;
  return tier == Tier::device ? memory.device_memory.value_or(Bytes(0)) : memory.host_memory;
}

PlanQuestion with_budget(PlanQuestion question, Tier tier, Bytes budget) {
  (tier == Tier::device ? *question.options.memory.device_memory
                        : question.options.memory.host_memory) = budget;
  return question;
}

/// Something to try.
struct Trial {
  std::string change;
  PlanQuestion question;
};

bool fits(const PlanQuestion& question) {
  const MinimumBudgets minimum = minimum_of(question);
  const MemoryRequest& memory = question.options.memory;
  return minimum.device <= memory.device_memory.value_or(minimum.device) &&
         minimum.host <= memory.host_memory && minimum.nvme <= memory.nvme_budget;
}

/// Larger batches, for which link and drives have about the same work: larger micro-batches, or
/// where memory has no room for them, more of them.
std::vector<Trial> batch_trials(const PlanQuestion& question) {
  std::vector<Trial> trials;
  for (const int64_t factor : {2, 4, 8}) {
    const int64_t sequences = question.options.shape.batch * factor;
    PlanQuestion larger = question;
    larger.options.shape.batch = sequences;
    if (!fits(larger)) {
      break;
    }
    trials.push_back({fmt::format("--micro-batch {}", sequences), std::move(larger)});
  }
  if (!trials.empty()) {
    return trials;
  }
  for (const int64_t factor : {2, 4, 8}) {
    const int64_t micro_batches = question.options.memory.micro_batches * factor;
    trials.push_back({fmt::format("--gradient-accumulation {}", micro_batches), question});
    trials.back().question.options.memory.micro_batches = micro_batches;
  }
  return trials;
}

std::vector<Trial> memory_trials(const PlanQuestion& question, const StepPlan& plan) {
  std::vector<Trial> trials;
  for (const Tier tier : {Tier::host, Tier::device}) {
    const Bytes budget = budget_of(question, tier);
    const Bytes usable = plan.everything + plan.fixed;
    if (budget.count() == 0 || budget >= usable) {
      continue;
    }
    const Bytes twice = std::min(budget * 2, round_up_budget(static_cast<double>(usable.count())));
    trials.push_back({fmt::format("--{}-memory {}", to_string(tier), flag_size(twice)),
                      with_budget(question, tier, twice)});
  }
  return trials;
}

std::vector<Trial> setting_trials(const PlanQuestion& question, const StepPlan& plan,
                                  const Hardware& hardware) {
  std::vector<Trial> trials;
  const MemoryRequest& memory = question.options.memory;
  if (plan.traffic.nvme_read + plan.traffic.nvme_write > Bytes(0)) {
    const auto paths = static_cast<int>(question.options.nvme_paths.size());
    const int drives = std::max(1, hardware.drives > 0 ? hardware.drives : paths);
    PlanQuestion more = question;
    scheduler::Rates& rates = more.options.memory.rates;
    rates.nvme_read *= static_cast<double>(drives + 1) / drives;
    rates.nvme_write *= static_cast<double>(drives + 1) / drives;
    trials.push_back({drives == 1 ? std::string("a second drive like the first")
                                  : fmt::format("{} drives instead of {}", drives + 1, drives),
                      more});
  }
  if (memory.offload_param == Tier::nvme) {
    trials.push_back({"zero_optimization.offload_param.device: cpu", question});
    trials.back().question.options.memory.offload_param = Tier::host;
  }
  if (memory.nvme_activations) {
    trials.push_back({"headrace.activation_nvme: false (cpu_checkpointing: true)", question});
    trials.back().question.options.memory.nvme_activations = false;
    trials.back().question.options.memory.host_activations = true;
  }
  if (memory.state.moment_dtype == DType::f32 && question.options.dtype == DType::bf16) {
    trials.push_back(
        {"optimizer.params.fp32_optimizer_states: false (changes the numbers)", question});
    trials.back().question.options.memory.state.moment_dtype = DType::bf16;
  }
  return trials;
}

constexpr double kWorthwhile = 1.03;

/// Of ever larger batches: the smallest that is nearly as fast as the fastest.
Suggestion smallest_enough(std::vector<Suggestion> found) {
  const auto fastest = std::max_element(
      found.begin(), found.end(),
      [](const Suggestion& a, const Suggestion& b) { return a.speedup < b.speedup; });
  const double enough = fastest->speedup / kWorthwhile;
  return *std::find_if(found.begin(), found.end(),
                       [&](const Suggestion& each) { return each.speedup >= enough; });
}

}  // namespace

std::optional<Recommendation> recommend_budget(const PlanQuestion& question, const StepPlan& plan,
                                               Tier tier) {
  constexpr int kPoints = 16;
  if (tier == Tier::device && !plan.has_device) {
    return std::nullopt;
  }
  PlanQuestion same_order = question;  // the other orders would take as long again
  same_order.options.memory.accumulation_order = plan.order;
  const Bytes minimum = tier == Tier::device ? plan.minimum.device : plan.minimum.host;
  const auto low = static_cast<double>(minimum.count());
  const double high = std::max(low, static_cast<double>((plan.everything + plan.fixed).count()));
  const auto point = [&](int i) {
    return round_up_budget(low * std::pow(high / low, static_cast<double>(i) / kPoints));
  };
  /// Empty: does not fit in this order.
  const auto seconds_at = [&](int i) -> std::optional<double> {
    const auto answer =
        plan_all({with_budget(same_order, tier, point(i))}, PlanDepth::quick).front();
    return answer.plan ? std::optional(answer.plan->seconds) : std::nullopt;
  };
  Recommendation result;
  result.best_seconds = result.seconds = seconds_at(kPoints).value_or(plan.seconds);
  int below = -1;  // too little
  int enough = kPoints;
  while (enough - below > 1) {
    const int middle = (below + enough) / 2;
    const std::optional<double> seconds = seconds_at(middle);
    if (seconds && *seconds <= kNearEnough * result.best_seconds) {
      enough = middle;
      result.seconds = *seconds;
    } else {
      below = middle;
    }
  }
  result.budget = point(enough);
  return result;
}

std::vector<Suggestion> suggest(const PlanQuestion& question, const StepPlan& plan,
                                const Hardware& hardware) {
  const std::vector<std::vector<Trial>> kinds = {batch_trials(question),
                                                 memory_trials(question, plan),
                                                 setting_trials(question, plan, hardware)};
  std::vector<PlanQuestion> questions{question};  // quick plans are compared with each other
  for (const std::vector<Trial>& kind : kinds) {
    for (const Trial& trial : kind) {
      questions.push_back(trial.question);
    }
  }
  const std::vector<PlanAnswer> answers = plan_all(questions, PlanDepth::quick);
  const double tokens_per_second = answers.front().plan.value_or(plan).tokens_per_second();
  std::vector<Suggestion> suggestions;
  size_t next = 1;
  for (size_t k = 0; k < kinds.size(); ++k) {
    std::vector<Suggestion> found;
    for (const Trial& trial : kinds[k]) {
      const std::optional<StepPlan>& other = answers[next++].plan;
      const double speedup = other ? other->tokens_per_second() / tokens_per_second : 0;
      if (speedup >= kWorthwhile) {
        found.push_back({trial.change, *other, speedup});
      }
    }
    if (k == 0 && !found.empty()) {
      found = {smallest_enough(std::move(found))};
    }
    std::move(found.begin(), found.end(), std::back_inserter(suggestions));
  }
  std::stable_sort(suggestions.begin(), suggestions.end(),
                   [](const Suggestion& a, const Suggestion& b) { return a.speedup > b.speedup; });
  return suggestions;
}

std::vector<Remedy> find_remedies(const PlanQuestion& question) {
  std::vector<Trial> trials;
  const MemoryRequest& memory = question.options.memory;
  const auto add = [&](std::string change) -> PlanQuestion& {
    return trials.emplace_back(Trial{std::move(change), question}).question;
  };
  if (memory.has_nvme && memory.offload_optimizer != Tier::nvme) {
    add("zero_optimization.offload_optimizer.device: nvme").options.memory.offload_optimizer =
        Tier::nvme;
  }
  if (memory.has_nvme && memory.offload_param != Tier::nvme) {
    add("zero_optimization.offload_param.device: nvme").options.memory.offload_param = Tier::nvme;
    PlanQuestion& both = add("both of them on nvme");
    both.options.memory.offload_param = both.options.memory.offload_optimizer = Tier::nvme;
  }
  if (memory.device_memory && !memory.host_activations && !memory.nvme_activations) {
    add("activation_checkpointing.cpu_checkpointing: true").options.memory.host_activations = true;
  }
  if (memory.has_nvme && !memory.nvme_activations) {
    add("headrace.activation_nvme: true").options.memory.nvme_activations = true;
  }
  if (question.options.shape.batch > 1) {
    add("--micro-batch 1").options.shape.batch = 1;
  }
  if (question.options.shape.seq > 1) {
    const int64_t half = question.options.shape.seq / 2;
    add(fmt::format("--seq-len {}", half)).options.shape.seq = half;
  }
  const MinimumBudgets now = minimum_of(question);
  std::vector<Remedy> remedies;
  for (const Trial& trial : trials) {
    const MinimumBudgets minimum = minimum_of(trial.question);
    if (minimum.device < now.device || minimum.host < now.host || minimum.nvme < now.nvme) {
      remedies.push_back({trial.change, minimum, fits(trial.question)});
    }
  }
  std::stable_partition(remedies.begin(), remedies.end(),
                        [](const Remedy& remedy) { return remedy.fits; });
  return remedies;
}

}  // namespace headrace::engine
