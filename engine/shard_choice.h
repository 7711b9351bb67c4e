#pragma once

#include <functional>
#include <optional>

#include "engine/memory_plan.h"

namespace headrace::engine {

/// What the choice is made with.
struct ShardTrials {
  Elements smallest;  ///< no shards are cut smaller
  /// The same plan with shards of at most so many elements; empty where it does not fit the
  /// budgets.
  std::function<std::optional<MemoryPlan>(Elements)> plan_with;
  /// What a plan's steps take, in seconds; the least is best. First by few policies, then by all.
  /// Called by several threads at once, for plans of their own.
  std::function<double(const MemoryPlan&)> rough_cost;
  std::function<double(MemoryPlan&)> cost;
};

/// The size of a plan's shards cut in `parts`; empty where they would be too small to gain by it.
std::optional<Elements> cut_shards(const ModelLayout& layout, int64_t parts, Elements smallest);

/// Makes a plan's steps cost less by smaller shards. They take less room on their way, so that more
/// of them overlap, and more of the rest stays; each costs an operation, its latencies, and time to
/// plan. Halves, quarters and eighths are tried.
MemoryPlan choose_shards(MemoryPlan plan, const ShardTrials& trials);

}  // namespace headrace::engine
