#include "engine/shard_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/for_each_parallel.h"
#include "engine/recompute_choice.h"

namespace headrace::engine {

namespace {

/// Below this the latency of a drive counts.
constexpr Elements kWorthCutting{int64_t{1} << 20};
/// Of the least rough cost: what costs more is not looked at any closer.
constexpr double kWorthALook = 1.02;

Elements largest_shard(const ModelLayout& layout) {
  Elements largest;
  for (const ModuleObjects& module : layout.modules) {
    for (const Shard& shard : module.shards) {
      largest = std::max(largest, shard.count);
    }
  }
  return largest;
}

}  // namespace

std::optional<Elements> cut_shards(const ModelLayout& layout, int64_t parts, Elements smallest) {
  const int64_t part = ceil_div(largest_shard(layout).count(), parts);
  const Elements size(align_up(part, kStatisticsBlock.count()));
  if (size < std::max(smallest, kWorthCutting)) {
    return std::nullopt;
  }
  return size;
}

MemoryPlan choose_shards(MemoryPlan plan, const ShardTrials& trials) {
  const ModelLayout whole = plan.layout;
  std::vector<MemoryPlan> plans;
  plans.push_back(std::move(plan));
  for (const int64_t parts : {2, 4, 8}) {
    const auto size = cut_shards(whole, parts, trials.smallest);
    auto other = size ? trials.plan_with(*size) : std::nullopt;
    if (!other) {
      break;
    }
    plans.push_back(std::move(*other));
  }
  if (plans.size() == 1) {
    return std::move(plans.front());
  }
  std::vector<double> rough(plans.size());
  for_each_parallel(plans.size(), [&](size_t i) { rough[i] = trials.rough_cost(plans[i]); });
  const double enough = kWorthALook * *std::min_element(rough.begin(), rough.end());
  std::vector<size_t> looked_at;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (rough[i] <= enough) {
      looked_at.push_back(i);
    }
  }
  std::vector<double> costs(looked_at.size());
  for_each_parallel(costs.size(), [&](size_t i) { costs[i] = trials.cost(plans[looked_at[i]]); });
  size_t chosen = 0;
  for (size_t i = 1; i < costs.size(); ++i) {
    if (costs[i] < kSavingIsFasterBy * costs[chosen]) {
      chosen = i;
    }
  }
  return std::move(plans[looked_at[chosen]]);
}

}  // namespace headrace::engine
