#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory_plan.h"
#include "model/recompute.h"

namespace headrace::engine {

/// Of each layer.
using RecomputeLevels = std::vector<model::Recompute>;

/// Blocks with each level.
model::PerLevel<int64_t> count_levels(const RecomputeLevels& levels);
/// "blocks computed again: 3 whole, 2 MLP, 1 nothing".
std::string describe(const RecomputeLevels& levels);

/// What the choice is made with.
struct RecomputeTrials {
  /// The same plan with other levels; empty where it does not fit the budgets.
  std::function<std::optional<MemoryPlan>(const RecomputeLevels&)> plan_with;
  /// Predicted duration of a plan's step.
  std::function<double(MemoryPlan&)> seconds;
};

/// A plan must be shorter by more than this to be worth the memory that it takes.
inline constexpr double kSavingIsFasterBy = 0.99;

/// Makes a plan faster in which every block is computed again in backward, and whose step takes
/// `seconds`, where memory allows: the last blocks save more, which backward needs first and so for
/// the shortest time. At most six plans are simulated.
MemoryPlan choose_recompute(MemoryPlan plan, double seconds, const RecomputeTrials& trials);

}  // namespace headrace::engine
