#include "engine/recompute_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace headrace::engine {
namespace {

using model::Recompute;

constexpr int64_t kLayers = 12;

int64_t count_of(const RecomputeLevels& levels, Recompute level) {
  return std::count(levels.begin(), levels.end(), level);
}

/// A plan that has its levels and one operation per block.
MemoryPlan plan_of(const RecomputeLevels& levels) {
  MemoryPlan plan;
  plan.layout.activations.emplace_back(static_cast<size_t>(kLayers) + 1);
  plan.layout.recompute = levels;
  for (const Recompute level : levels) {
    scheduler::Operation operation;
    operation.seconds = 2 + static_cast<double>(level);
    plan.training.trace.operations.push_back(operation);
  }
  return plan;
}

double compute_seconds(const MemoryPlan& plan) {
  double seconds = 0;
  for (const scheduler::Operation& operation : plan.training.trace.operations) {
    seconds += operation.seconds;
  }
  return seconds;
}

/// A machine on which a block's values take `size` each, of `room`.
struct Machine {
  int64_t none_size = 3;
  int64_t mlp_size = 1;
  int64_t room = 100;
  std::function<double(const MemoryPlan&)> seconds = compute_seconds;
  int simulated = 0;

  RecomputeLevels choose() {
    RecomputeTrials trials;
    trials.plan_with = [&](const RecomputeLevels& levels) -> std::optional<MemoryPlan> {
      EXPECT_EQ(levels.size(), static_cast<size_t>(kLayers));
      if (used(levels) > room) {
        return std::nullopt;
      }
      return plan_of(levels);
    };
    trials.seconds = [&](const MemoryPlan& plan) {
      ++simulated;
      return seconds(plan);
    };
    const RecomputeLevels all_blocks(static_cast<size_t>(kLayers), Recompute::block);
    const MemoryPlan plan = plan_of(all_blocks);
    return choose_recompute(plan, seconds(plan), trials).layout.recompute;
  }
  int64_t used(const RecomputeLevels& levels) const {
    return none_size * count_of(levels, Recompute::none) +
           mlp_size * count_of(levels, Recompute::mlp);
  }
};

TEST(RecomputeChoice, KeepsEverythingWhereItFitsAndComputeIsTheLimit) {
  Machine machine;
  EXPECT_EQ(count_of(machine.choose(), Recompute::none), kLayers);
  EXPECT_EQ(machine.simulated, 1);
}

TEST(RecomputeChoice, SimulatesNothingWhereNothingFits) {
  Machine machine;
  machine.room = 0;
  EXPECT_EQ(count_of(machine.choose(), Recompute::block), kLayers);
  EXPECT_EQ(machine.simulated, 0);
}

TEST(RecomputeChoice, TheLastBlocksKeepWhatFits) {
  for (int64_t room = 1; room < 40; ++room) {
    Machine machine;
    machine.room = room;
    machine.mlp_size = 4;
    const RecomputeLevels levels = machine.choose();
    const int64_t kept = std::min(room / 3, kLayers);
    EXPECT_EQ(count_of(levels, Recompute::none), kept) << room;
    EXPECT_TRUE(std::is_sorted(levels.rbegin(), levels.rend())) << room;
    EXPECT_LE(machine.simulated, 2 * 3);
  }
}

TEST(RecomputeChoice, TakesTheLevelThatSavesMoreInTheRoom) {
  Machine machine;
  machine.room = 12;  // 4 blocks without recomputation save 8 s, 12 without the attention half 12 s
  EXPECT_EQ(count_of(machine.choose(), Recompute::mlp), kLayers);
}

TEST(RecomputeChoice, WhereItDoesNotPayNothingIsKept) {
  Machine machine;
  machine.seconds = [](const MemoryPlan&) { return 100.0; };
  EXPECT_EQ(count_of(machine.choose(), Recompute::block), kLayers);
}

/// Kept values displace others, whose movement costs more from the fourth block on.
TEST(RecomputeChoice, KeepsFewerBlocksWhereThatIsFaster) {
  Machine machine;
  machine.seconds = [](const MemoryPlan& plan) {
    const int64_t kept = count_of(plan.layout.recompute, Recompute::none) +
                         count_of(plan.layout.recompute, Recompute::mlp);
    return compute_seconds(plan) + static_cast<double>(3 * std::max<int64_t>(kept - 3, 0));
  };
  const RecomputeLevels levels = machine.choose();
  EXPECT_EQ(count_of(levels, Recompute::none), 3);
  EXPECT_EQ(count_of(levels, Recompute::block), kLayers - 3);
}

}  // namespace
}  // namespace headrace::engine
