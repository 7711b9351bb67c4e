#include "engine/planner/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <future>

namespace headrace::engine {

namespace {

/// Speedups below it are not worth a line.
constexpr double kWorthwhile = 1.03;

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

bool fits(const MinimumBudgets& minimum, const MemoryRequest& memory) {
  return minimum.device <= memory.device_memory.value_or(minimum.device) &&
         minimum.host <= memory.host_memory && minimum.nvme <= memory.nvme_budget;
}

/// A batch so large that the step computes all the time, for link and drives have about the same
/// work: larger micro-batches, or where memory has no room for them, more of them.
std::optional<Trial> batch_trial(const PlanQuestion& question, const StepPlan& plan) {
  constexpr double kComputeBound = 0.97;
  constexpr int64_t kMostLarger = 32;
  const double computing = plan.busy[static_cast<size_t>(scheduler::Lane::compute)] / plan.seconds;
  if (computing <= 0 || computing >= kComputeBound) {
    return std::nullopt;
  }
  int64_t factor = 2;
  while (factor < kMostLarger && static_cast<double>(factor) * computing < 1) {
    factor *= 2;
  }
  for (int64_t times = factor; times > 1; times /= 2) {
    Trial trial{fmt::format("--micro-batch {}", question.options.shape.batch * times), question};
    trial.question.options.shape.batch *= times;
    if (fits(minimum_of(trial.question), trial.question.options.memory)) {
      return trial;
    }
  }
  Trial trial{
      fmt::format("--gradient-accumulation {}", question.options.memory.micro_batches * factor),
      question};
  trial.question.options.memory.micro_batches *= factor;
  return trial;
}

/// Settings with which a run computes other numbers.
std::vector<Trial> lossy_trials(const PlanQuestion& question, const Hardware& hardware) {
  const EngineOptions& options = question.options;
  std::vector<Trial> trials;
  const auto add = [&](const std::string& setting) -> EngineOptions& {
    trials.push_back({setting + " (changes the numbers)", question});
    return trials.back().question.options;
  };
  if (options.memory.state.moment_dtype == DType::f32) {
    if (options.dtype == DType::bf16) {
      add("optimizer.params.fp32_optimizer_states: false").memory.state.moment_dtype = DType::bf16;
    }
    // Adam's, and not those that the device updates.
    if (options.memory.state.moments == 2 && options.memory.offload_optimizer) {
      add("headrace.lossy_8bit_moments: true").memory.state.moment_dtype = DType::u8;
    }
  }
  const bool has_fp8 = hardware.compute_fp8.per_second > 0 && options.dtype != DType::f32 &&
                       model::fp8_obstacle(question.config, options.shape).empty();
  if (has_fp8 && !options.fp8_forward) {
    add("headrace.lossy_fp8_forward: true").fp8_forward = true;
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
    const auto grow = [&](double& rate, double limit) {
      const double grown = rate * (drives + 1) / drives;
      rate = limit > 0 ? std::min(grown, limit) : grown;
    };
    grow(rates.nvme_read, question.options.io.limits.read_bytes_per_second);
    grow(rates.nvme_write, question.options.io.limits.write_bytes_per_second);
    grow(rates.nvme_both, question.options.io.limits.both_bytes_per_second);
    trials.push_back({drives == 1 ? std::string("a second drive like the first")
                                  : fmt::format("{} drives instead of {}", drives + 1, drives),
                      more});
  }
  if (memory.offload_param == Tier::nvme) {
    trials.push_back({"zero_optimization.offload_param.device: cpu", question});
    trials.back().question.options.memory.offload_param = Tier::host;
  }
  std::vector<Trial> lossy = lossy_trials(question, hardware);
  std::move(lossy.begin(), lossy.end(), std::back_inserter(trials));
  return trials;
}

std::optional<Recommendation> recommend_budget(const PlanQuestion& question, const StepPlan& plan,
                                               Tier tier) {
  constexpr int kPoints = 16;
  if (tier == Tier::device && !plan.has_device) {
    return std::nullopt;
  }
  PlanQuestion same_order = question;  // the other orders would take as long again
  same_order.options.memory.accumulation_order = plan.order;
  const auto minimum_in = [&](const StepPlan& planned) {
    const Bytes bytes = tier == Tier::device ? planned.minimum.device : planned.minimum.host;
    return static_cast<double>(bytes.count());
  };
  /// Empty: does not fit in this order.
  const auto plan_with = [&](double budget) {
    const PlanQuestion changed = with_budget(same_order, tier, round_up_budget(budget));
    return plan_all({changed}, PlanDepth::quick).front().plan;
  };
  const double high =
      std::max(minimum_in(plan), static_cast<double>((plan.everything + plan.fixed).count()));
  Recommendation result;
  result.plan = plan_with(high).value_or(plan);
  result.best_seconds = result.plan.seconds;
  // That of whole blocks, where they fit: nobody is to cut them for want of less than that.
  const double low = std::min(minimum_in(result.plan), high);
  const auto point = [&](int i) {
    return low * std::pow(high / low, static_cast<double>(i) / kPoints);
  };
  int below = -1;  // too little
  int enough = kPoints;
  while (enough - below > 1) {
    const int middle = (below + enough) / 2;
    std::optional<StepPlan> found = plan_with(point(middle));
    if (found && found->seconds <= kNearEnough * result.best_seconds) {
      enough = middle;
      result.plan = std::move(*found);
    } else {
      below = middle;
    }
  }
  result.budget = round_up_budget(point(enough));
  return result;
}

std::vector<Trial> make_trials(const PlanQuestion& question, const StepPlan& plan,
                               const Hardware& hardware) {
  std::vector<Trial> trials = setting_trials(question, plan, hardware);
  if (auto batch = batch_trial(question, plan)) {
    trials.push_back(std::move(*batch));
  }
  return trials;
}

}  // namespace

Advice advise(const PlanQuestion& question, const StepPlan& plan, const Hardware& hardware) {
  Advice advice;
  const auto recommend = [&](Tier tier) {
    return std::async(std::launch::async,
                      [&, tier] { return recommend_budget(question, plan, tier); });
  };
  auto device = recommend(Tier::device);
  auto host = recommend(Tier::host);
  const std::vector<Trial> trials = make_trials(question, plan, hardware);
  std::vector<PlanQuestion> questions{question};  // quick plans are compared with each other
  for (const Trial& trial : trials) {
    questions.push_back(trial.question);
  }
  const std::vector<PlanAnswer> answers = plan_all(questions, PlanDepth::quick);
  const double tokens_per_second = answers.front().plan.value_or(plan).tokens_per_second();
  const auto consider = [&](const std::string& change, const StepPlan& other) {
    const double speedup = other.tokens_per_second() / tokens_per_second;
    if (speedup >= kWorthwhile) {
      advice.suggestions.push_back({change, other, speedup});
    }
  };
  for (size_t i = 0; i < trials.size(); ++i) {
    if (answers[i + 1].plan) {
      consider(trials[i].change, *answers[i + 1].plan);
    }
  }
  advice.device = device.get();
  advice.host = host.get();
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto& recommended = tier == Tier::device ? advice.device : advice.host;
    if (recommended && recommended->budget > budget_of(question, tier)) {
      consider(fmt::format("--{}-memory {}", to_string(tier), flag_size(recommended->budget)),
               recommended->plan);
    }
  }
  std::stable_sort(advice.suggestions.begin(), advice.suggestions.end(),
                   [](const Suggestion& a, const Suggestion& b) { return a.speedup > b.speedup; });
  return advice;
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
    PlanQuestion& both = add("offload_param.device and offload_optimizer.device: nvme");
    both.options.memory.offload_param = both.options.memory.offload_optimizer = Tier::nvme;
  }
  if (memory.device_memory && !memory.host_activations && !memory.nvme_activations) {
    add("activation_checkpointing.cpu_checkpointing: true").options.memory.host_activations = true;
  }
  if (memory.has_nvme && !memory.nvme_activations) {
    add("headrace.activation_nvme: true").options.memory.nvme_activations = true;
  }
  if (memory.recompute && memory.recompute != model::Recompute::block) {
    add("headrace.recompute: block").options.memory.recompute = model::Recompute::block;
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
      remedies.push_back({trial.change, minimum, fits(minimum, trial.question.options.memory)});
    }
  }
  std::stable_partition(remedies.begin(), remedies.end(),
                        [](const Remedy& remedy) { return remedy.fits; });
  return remedies;
}

}  // namespace headrace::engine
