#include "engine/shard_choice.h"

#include <algorithm>
#include <utility>

#include "engine/recompute_choice.h"

namespace headrace::engine {

namespace {

/// Below this the latency of a drive counts.
constexpr Elements kWorthCutting{int64_t{1} << 20};

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
  std::optional<double> best;
  for (const int64_t parts : {2, 4, 8}) {
    const auto size = cut_shards(whole, parts, trials.smallest);
    auto other = size ? trials.plan_with(*size) : std::nullopt;
    if (!other) {
      break;
    }
    if (!best) {
      best = trials.cost(plan);
    }
    const double cost = trials.cost(*other);
    if (cost < kSavingIsFasterBy * *best) {
      best = cost;
      plan = std::move(*other);
    }
  }
  return plan;
}

}  // namespace headrace::engine
