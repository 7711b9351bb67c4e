#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "scheduler/compiler.h"
#include "scheduler/costs.h"
#include "scheduler/liveness.h"
#include "scheduler/victim_model.h"

namespace headrace::scheduler {

namespace {

/// Whether reuse or early fetches pay more depends on which lane binds when, which only the whole
/// schedule shows: the plans are made and simulated. From pure reuse to mostly early fetches.
constexpr std::array<FarthestUseWeights, 4> kWeights = {{{1, 0}, {1, 0.3}, {0.3, 0.3}, {0.1, 1}}};
/// Longer traces get few plans, and still longer ones the first only: a plan takes a second for
/// some 20,000 operations.
constexpr size_t kOperationsForAllPlans = 4000;
constexpr size_t kOperationsForFewPlans = 16000;
/// The same before a run, where many steps are compared.
constexpr size_t kOperationsToCompare = 2000;
/// Worth of a second less on the drive in seconds of the step: it wears the drive less, and what
/// was kept for it may serve the next round as well.
constexpr double kDriveSecondWorth = 0.15;

/// Plans that cost at most so much more than the cheapest are judged by what they leave, too.
constexpr double kWorthContinuing = 1.03;

/// Parts of the room that the planned copies may fill.
constexpr std::array<double, 2> kUsable = {1, 0.85};

/// Work on the relaxations of a keep plan for a run.
constexpr int64_t kManySteps = 200'000'000;

/// A plan that follows a keep plan.
struct PlannedVariant {
  size_t weights = 0;  ///< in kWeights
  PlanTrust trust = PlanTrust::by_distance;
};
constexpr std::array<PlannedVariant, 4> kPlanned = {{{0, PlanTrust::by_distance},
                                                     {2, PlanTrust::by_distance},
                                                     {0, PlanTrust::in_full},
                                                     {1, PlanTrust::in_full}}};
constexpr std::array<PlannedVariant, 2> kQuickPlanned = {
    {{0, PlanTrust::by_distance}, {3, PlanTrust::by_distance}}};
/// Of these the places are chosen in advance as well.
constexpr std::array<PlannedVariant, 2> kPlaced = {
    {{0, PlanTrust::in_full}, {1, PlanTrust::in_full}}};

/// Makes plans, simulates them and keeps the best.
class Contest {
 public:
  explicit Contest(const CompileInput& input) : input_(input) {}

  void enter(const VictimModel& model) { enter(compile_with(input_, model)); }

  /// With places chosen in advance, unless the plan looks like losing even if each slot found its
  /// place and no other plan were faster.
  void enter_placed(const VictimModel& model) {
    const UnplacedSchedule unplaced = compile_unplaced(input_, model);
    if (fastest_ + drive_cost(input_.rates, unplaced.schedule) < least_cost_) {
      enter(compile_placed(input_, model, unplaced));
    }
  }

  /// The cheapest.
  Schedule take_best() { return std::move(best()->schedule); }

  /// The cheapest together with the next round, which a simple plan makes of what each leaves.
  Schedule take_best_of_two_rounds() {
    const double enough = kWorthContinuing * least_cost_;
    std::erase_if(entries_, [&](const Entry& entry) { return entry.cost > enough; });
    if (entries_.size() > 1) {
      for (Entry& entry : entries_) {
        entry.cost += next_round_cost(entry.schedule.final);
      }
    }
    return take_best();
  }

 private:
  struct Entry {
    Schedule schedule;
    double cost = 0;
  };

  void enter(Schedule schedule) {
    const double seconds = simulate(input_, schedule).seconds;
    const double cost = seconds + drive_cost(input_.rates, schedule);
    fastest_ = std::min(fastest_, seconds);
    least_cost_ = std::min(least_cost_, cost);
    entries_.push_back({std::move(schedule), cost});
  }

  double next_round_cost(const std::vector<Residency>& initial) const {
    CompileInput next = input_;
    next.initial = initial;
    const Schedule schedule = compile_with(next, FarthestUse(next, kWeights[1]));
    return simulate(next, schedule).seconds + drive_cost(next.rates, schedule);
  }

  std::vector<Entry>::iterator best() {
    return std::min_element(entries_.begin(), entries_.end(),
                            [](const Entry& a, const Entry& b) { return a.cost < b.cost; });
  }

  const CompileInput& input_;
  std::vector<Entry> entries_;
  double least_cost_ = std::numeric_limits<double>::infinity();
  double fastest_ = std::numeric_limits<double>::infinity();
};

class OptimalPolicy final : public Policy {
 public:
  explicit OptimalPolicy(PolicyEffort effort) : effort_(effort) {}
  std::string_view name() const override { return "optimal"; }
  Schedule compile(const CompileInput& input) const override {
    const size_t operations = input.trace->operations.size();
    const bool is_for_run = effort_ == PolicyEffort::thorough;
    if (operations > (is_for_run ? kOperationsForFewPlans : kOperationsToCompare)) {
      return compile_with(input, FarthestUse(input, kWeights[0]));
    }
    Contest contest(input);
    if (effort_ == PolicyEffort::quick || operations > kOperationsForAllPlans) {
      // The first and the last of a kind: the most unlike each other.
      contest.enter(FarthestUse(input, kWeights.front()));
      contest.enter(FarthestUse(input, kWeights.back()));
      const KeepPlan plan(input, kUsable[0]);
      if (plan.is_complete()) {
        enter_planned(input, plan, kQuickPlanned, contest);
      }
      return contest.take_best();
    }
    for (const FarthestUseWeights& weights : kWeights) {
      contest.enter(FarthestUse(input, weights));
    }
    contest.enter(LeastRecentlyUsed());
    enter_all_planned(input, contest);
    return input.foresight == Foresight::whole_step ? contest.take_best_of_two_rounds()
                                                    : contest.take_best();
  }

 private:
  static void enter_planned(const CompileInput& input, const KeepPlan& plan,
                            std::span<const PlannedVariant> variants, Contest& contest) {
    for (const PlannedVariant& variant : variants) {
      contest.enter(PlannedUse(input, plan, kWeights[variant.weights], variant.trust));
    }
  }

  void enter_all_planned(const CompileInput& input, Contest& contest) const {
    for (const double usable : kUsable) {
      const KeepPlan plan(input, usable,
                          effort_ == PolicyEffort::planning ? KeepPlan::kFewSteps : kManySteps);
      if (!plan.is_complete()) {
        break;  // nor with less room, which takes as long to find
      }
      enter_planned(input, plan, kPlanned, contest);
      if (input.foresight == Foresight::whole_step) {
        for (const PlannedVariant& variant : kPlaced) {
          contest.enter_placed(PlannedUse(input, plan, kWeights[variant.weights], variant.trust));
        }
      }
    }
  }

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

double drive_cost(const Rates& rates, const Schedule& schedule) {
  const Rates slowed = under_load(rates);
  return kDriveSecondWorth * (static_cast<double>(schedule.nvme_read.count()) / slowed.nvme_read +
                              static_cast<double>(schedule.nvme_write.count()) / slowed.nvme_write);
}

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
