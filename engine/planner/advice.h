#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/planner/hardware.h"
#include "engine/planner/step_plan.h"

namespace headrace::engine {

/// The least budget of a tier, on a grid, whose step takes at most kNearEnough times what it takes
/// with all the memory that the run can use; the other budgets as they are.
struct Recommendation {
  Bytes budget;
  double seconds = 0;       ///< of a step with it
  double best_seconds = 0;  ///< with all the memory that the run can use
};
inline constexpr double kNearEnough = 1.05;
/// `plan`: of the question. Empty where there is no such tier.
std::optional<Recommendation> recommend_budget(const PlanQuestion& question, const StepPlan& plan,
                                               Tier tier);

/// A change that makes steps faster.
struct Suggestion {
  std::string change;  ///< the flag or key with its value
  StepPlan plan;
  double speedup = 1;  ///< in tokens per second
};
/// Each tried by planning again; those that bring 3 % or more, the best first.
std::vector<Suggestion> suggest(const PlanQuestion& question, const StepPlan& plan,
                                const Hardware& hardware);

/// A change of the settings of a run that does not fit.
struct Remedy {
  std::string change;
  MinimumBudgets minimum;  ///< with it
  bool fits = false;       ///< in the budgets that are given
};
/// Those that lower what the run needs, the ones that make it fit first.
std::vector<Remedy> find_remedies(const PlanQuestion& question);

}  // namespace headrace::engine
