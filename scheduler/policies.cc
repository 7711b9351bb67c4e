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

// Whether reuse or early fetches pay more depends on which lane binds when, which only the whole
// schedule shows: the plans are made and simulated. With `keep` above 1, a copy is worth more than
// the stall it takes to bring it back, for a stall delays the step only where its lane binds.
constexpr FarthestUseWeights kReuse{.keep = 1, .lateness = 0};
constexpr FarthestUseWeights kBalanced{.keep = 1, .lateness = 0.3};
constexpr FarthestUseWeights kEarlier{.keep = 0.3, .lateness = 0.3};
constexpr FarthestUseWeights kEarliest{.keep = 0.1, .lateness = 1};
constexpr FarthestUseWeights kFewBytes{.keep = 4, .lateness = 0};
constexpr FarthestUseWeights kFewestBytes{.keep = 16, .lateness = 0};
/// Of the plans that follow no keep plan.
constexpr std::array<FarthestUseWeights, 5> kFarthest = {kReuse, kBalanced, kEarliest, kFewBytes,
                                                         kFewestBytes};
/// Longer traces get few plans, and still longer ones the first only: a plan takes a second for
/// some 20,000 operations.
constexpr size_t kOperationsForAllPlans = 4000;
constexpr size_t kOperationsForFewPlans = 16000;
/// The same before a run, where many steps are compared.
constexpr size_t kOperationsToCompare = 2000;
/// Worth of a second less on the drive in seconds of the step: it wears the drive less, and what
/// was kept for it may serve the next round as well.
constexpr double kDriveSecondWorth = 0.15;

/// A drive's queue holds at most so many whole transfers.
constexpr int64_t kTransfersSideBySide = 4;

/// Plans that cost at most so much more than the cheapest are judged by what they leave, too.
constexpr double kWorthContinuing = 1.03;

/// Parts of the room that the planned copies may fill.
constexpr std::array<double, 2> kUsable = {1, 0.9};

/// Work on the relaxations of a keep plan for a run.
constexpr int64_t kManySteps = 200'000'000;

/// A plan that follows a keep plan.
struct PlannedVariant {
  FarthestUseWeights weights;
  PlanTrust trust = PlanTrust::by_distance;
};
constexpr std::array<PlannedVariant, 6> kPlanned = {{{kReuse, PlanTrust::by_distance},
                                                     {kEarlier, PlanTrust::by_distance},
                                                     {kReuse, PlanTrust::in_full},
                                                     {kBalanced, PlanTrust::in_full},
                                                     {kFewBytes, PlanTrust::in_full},
                                                     {kFewestBytes, PlanTrust::in_full}}};
constexpr std::array<PlannedVariant, 2> kQuickPlanned = {
    {{kReuse, PlanTrust::by_distance}, {kEarliest, PlanTrust::by_distance}}};
/// Of these the places are chosen in advance as well.
constexpr std::array<PlannedVariant, 3> kPlaced = {{{kReuse, PlanTrust::in_full},
                                                    {kFewBytes, PlanTrust::in_full},
                                                    {kFewestBytes, PlanTrust::in_full}}};

/// Rates with a latency of the drive as a full queue has it. In a simulation transfers follow each
/// other and none is late, so that a plan with room for one transfer at a time looks as fast as one
/// that has the next on its way; on the drive it is not.
Rates with_full_queue(const CompileInput& input) {
  double bytes = 0;
  size_t uses = 0;
  for (const Operation& operation : input.trace->operations) {
    uses += operation.uses.size();
    for (const Use& use : operation.uses) {
      bytes += static_cast<double>((*input.objects)[index_of(use.object)].size.count());
    }
  }
  Rates rates = input.rates;
  const double few = kTransfersSideBySide * bytes / static_cast<double>(std::max<size_t>(uses, 1));
  rates.nvme_latency += std::min(few, static_cast<double>(rates.nvme_side_by_side.count())) /
                        under_load(rates).nvme_read;
  return rates;
}

/// Makes plans, simulates them and keeps the best.
class Contest {
 public:
  explicit Contest(const CompileInput& input) : input_(input), judged_(input) {
    judged_.rates = with_full_queue(input);
  }

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

  /// The cheapest together with the next round, the better of two that simple plans make of what
  /// each leaves.
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
    const double seconds = seconds_of(schedule);
    const double cost = seconds + drive_cost(input_.rates, schedule);
    fastest_ = std::min(fastest_, seconds);
    least_cost_ = std::min(least_cost_, cost);
    entries_.push_back({std::move(schedule), cost});
  }

  /// As plans are compared. Of a schedule from whatever residency: the simulation does not ask.
  double seconds_of(const Schedule& schedule) const { return simulate(judged_, schedule).seconds; }

  double next_round_cost(const std::vector<Residency>& initial) const {
    CompileInput next = input_;
    next.initial = initial;
    const auto cost_of = [&](const Schedule& schedule) {
      return seconds_of(schedule) + drive_cost(input_.rates, schedule);
    };
    return std::min(cost_of(compile_with(next, FarthestUse(next, kBalanced))),
                    cost_of(compile_with(next, LeastRecentlyUsed())));
  }

  std::vector<Entry>::iterator best() {
    return std::min_element(entries_.begin(), entries_.end(),
                            [](const Entry& a, const Entry& b) { return a.cost < b.cost; });
  }

  const CompileInput& input_;
  CompileInput judged_;  ///< at the rates by which plans are compared
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
      return compile_with(input, FarthestUse(input, kReuse));
    }
    Contest contest(input);
    if (effort_ == PolicyEffort::quick || operations > kOperationsForAllPlans) {
      // The most unlike each other.
      contest.enter(FarthestUse(input, kReuse));
      contest.enter(FarthestUse(input, kEarliest));
      const KeepPlan plan(input, kUsable[0]);
      if (plan.is_complete()) {
        enter_planned(input, plan, kQuickPlanned, contest);
      }
      return contest.take_best();
    }
    for (const FarthestUseWeights& weights : kFarthest) {
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
      contest.enter(PlannedUse(input, plan, variant.weights, variant.trust));
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
          contest.enter_placed(PlannedUse(input, plan, variant.weights, variant.trust));
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
