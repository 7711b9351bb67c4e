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
  StepPlan plan;            ///< with it
  double best_seconds = 0;  ///< of a step with all the memory that the run can use
};
inline constexpr double kNearEnough = 1.05;

/// A change that makes steps faster.
struct Suggestion {
  std::string change;  ///< the flag or key with its value
  StepPlan plan;
  double speedup = 1;  ///< in tokens per second
};

struct Advice {
  std::optional<Recommendation> device;  ///< empty: no device tier
  std::optional<Recommendation> host;
  /// Each tried by planning again; those that bring 3 % or more, the best first.
  std::vector<Suggestion> suggestions;
};

/// `plan`: of the question, which fits.
Advice advise(const PlanQuestion& question, const StepPlan& plan, const Hardware& hardware);

/// A change of the settings of a run that does not fit.
struct Remedy {
  std::string change;
  MinimumBudgets minimum;  ///< with it
  bool fits = false;       ///< in the budgets that are given
};
/// Those that lower what the run needs, the ones that make it fit first.
std::vector<Remedy> find_remedies(const PlanQuestion& question);

}  // namespace headrace::engine
