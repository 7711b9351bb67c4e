#include <array>

#include "scheduler/compiler.h"
#include "scheduler/costs.h"
#include "scheduler/liveness.h"
#include "scheduler/victim_model.h"

namespace headrace::scheduler {

namespace {

/// Whether reuse or early fetches pay more depends on which lane binds when, which only the whole
/// schedule shows: the plans are made and simulated. From pure reuse to mostly early fetches.
constexpr std::array<FarthestUseWeights, 4> kWeights = {{{1, 0}, {1, 0.3}, {0.3, 0.3}, {0.1, 1}}};
/// Parts of the room that the planned copies may fill.
constexpr std::array<double, 2> kUsable = {1, 0.85};
/// Longer traces get the first plan only; their compilation has to stay below a second.
constexpr size_t kMaxOperationsToCompare = 2000;
/// Worth of a second less on the drive in seconds of the step: it wears the drive less, and what
/// was kept for it may serve the next round as well.
constexpr double kDriveSecondWorth = 0.15;

struct Candidate {
  Schedule schedule;
  double cost = 0;
};

Candidate try_model(const CompileInput& input, const VictimModel& model) {
  Candidate result;
  result.schedule = compile_with(input, model);
  const Schedule& schedule = result.schedule;
  const Rates rates = under_load(input.rates);
  const double moving = static_cast<double>(schedule.nvme_read.count()) / rates.nvme_read +
                        static_cast<double>(schedule.nvme_write.count()) / rates.nvme_write;
  result.cost = simulate(input, schedule).seconds + kDriveSecondWorth * moving;
  return result;
}

class OptimalPolicy final : public Policy {
 public:
  explicit OptimalPolicy(PolicyEffort effort) : effort_(effort) {}
  std::string_view name() const override { return "optimal"; }
  Schedule compile(const CompileInput& input) const override {
    const FarthestUse reuse(input, kWeights[0]);
    if (input.trace->operations.size() > kMaxOperationsToCompare) {
      return compile_with(input, reuse);
    }
    Candidate best = try_model(input, reuse);
    const auto consider = [&](const VictimModel& model) {
      Candidate other = try_model(input, model);
      if (other.cost < best.cost) {
        best = std::move(other);
      }
    };
    const bool is_quick = effort_ == PolicyEffort::quick;
    // The quick ones are the first and the last of a kind: the most unlike each other.
    const size_t step = is_quick ? kWeights.size() - 1 : 1;
    for (size_t i = step; i < kWeights.size(); i += step) {
      consider(FarthestUse(input, kWeights[i]));
    }
    if (!is_quick) {
      consider(LeastRecentlyUsed());
    }
    for (const double usable : kUsable) {
      const KeepPlan plan(input, usable);
      if (!plan.is_complete()) {
        break;
      }
      for (size_t i = 0; i < kWeights.size(); i += step) {
        consider(PlannedUse(input, plan, kWeights[i]));
      }
      if (is_quick) {
        break;
      }
    }
    return std::move(best.schedule);
  }

 private:
  PolicyEffort effort_;
};

class LivenessPolicy final : public Policy {
 public:
  LivenessPolicy(const LivenessLimits& limits, std::vector<Elements> parameters)
      : limits_(limits), parameters_(std::move(parameters)) {}
  std::string_view name() const override { return "liveness"; }
  Schedule compile(const CompileInput& input) const override {
    const LivenessPlan plan = plan_liveness(input, parameters_, limits_);
    return compile_with(input, LeastRecentlyUsed(), &plan.operations);
  }

 private:
  LivenessLimits limits_;
  std::vector<Elements> parameters_;
};

class LruPolicy final : public Policy {
 public:
  std::string_view name() const override { return "lru"; }
  Schedule compile(const CompileInput& input) const override {
    return compile_with(input, LeastRecentlyUsed());
  }
};

}  // namespace

std::unique_ptr<Policy> make_optimal_policy(PolicyEffort effort) {
  return std::make_unique<OptimalPolicy>(effort);
}
std::unique_ptr<Policy> make_liveness_policy(const LivenessLimits& limits,
                                             std::vector<Elements> parameters) {
  return std::make_unique<LivenessPolicy>(limits, std::move(parameters));
}
std::unique_ptr<Policy> make_lru_policy() {
  return std::make_unique<LruPolicy>();
}

}  // namespace headrace::scheduler
