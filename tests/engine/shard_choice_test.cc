#include "engine/shard_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/plan_choice.h"
#include "model/shapes.h"
#include "tests/engine/plan_models.h"

namespace headrace::engine {
namespace {

constexpr int64_t kMillion = int64_t{1} << 20;

/// One module that is cut in shards of at most `most` elements.
MemoryPlan plan_of(Elements count, Elements most) {
  MemoryPlan plan;
  ModuleObjects module;
  for (Elements first; first < count; first += most) {
    Shard& shard = module.shards.emplace_back();
    shard.first = first;
    shard.count = std::min(most, count - first);
  }
  plan.layout.modules.push_back(std::move(module));
  plan.layout.shard_max = most;
  return plan;
}

/// A machine on which steps cost what the size of the shards says, in units of 2^20 elements.
struct Machine {
  std::map<int64_t, double> cost;
  int64_t smallest = 1;
  int64_t fits_from = 1;
  /// Where not empty: by few policies, else the same.
  std::map<int64_t, double> rough = {};
  std::vector<int64_t> tried = {};

  int64_t choose(int64_t millions) {
    const Elements count(kMillion * millions);
    ShardTrials trials;
    trials.smallest = Elements(kMillion * smallest);
    trials.plan_with = [&](Elements most) -> std::optional<MemoryPlan> {
      EXPECT_EQ(most.count() % kMillion, 0);
      if (most < Elements(kMillion * fits_from)) {
        return std::nullopt;
      }
      return plan_of(count, most);
    };
    const auto size = [](const MemoryPlan& plan) {
      return plan.layout.shard_max.count() / kMillion;
    };
    trials.rough_cost = [&](const MemoryPlan& plan) {
      return rough.empty() ? cost.at(size(plan)) : rough.at(size(plan));
    };
    trials.cost = [&](const MemoryPlan& plan) {
      tried.push_back(size(plan));
      return cost.at(tried.back());
    };
    return choose_shards(plan_of(count, count), trials).layout.shard_max.count() / kMillion;
  }
};

TEST(ShardChoice, TheCheapestIsTaken) {
  EXPECT_EQ((Machine{{{8, 10}, {4, 9}, {2, 8}, {1, 9}}}.choose(8)), 2);
  EXPECT_EQ((Machine{{{8, 10}, {4, 11}, {2, 12}, {1, 9}}}.choose(8)), 1) << "beyond worse ones";
  EXPECT_EQ((Machine{{{8, 7}, {4, 11}, {2, 12}, {1, 9}}}.choose(8)), 8);
}

TEST(ShardChoice, MoreOperationsMustBeWorthIt) {
  EXPECT_EQ((Machine{{{8, 10}, {4, 9.95}, {2, 9.92}, {1, 9.91}}}.choose(8)), 8);
  EXPECT_EQ((Machine{{{8, 10}, {4, 9.5}, {2, 9.45}, {1, 9.42}}}.choose(8)), 4);
}

TEST(ShardChoice, NoneAreTriedThatAreTooSmallOrDoNotFit) {
  Machine machine{{{4, 4}, {2, 2}, {1, 1}}};
  EXPECT_EQ(machine.choose(4), 1) << "an eighth would be below 2^20 elements";
  machine = {{{8, 8}, {4, 4}, {2, 2}, {1, 1}}, 2};
  EXPECT_EQ(machine.choose(8), 2);
  machine = {{{8, 8}, {4, 4}, {2, 2}, {1, 1}}, 1, 4};
  EXPECT_EQ(machine.choose(8), 4);
}

TEST(ShardChoice, WhatLooksWorseAtFirstIsNotLookedAtAgain) {
  Machine machine{{{8, 10}, {4, 9}, {2, 8}, {1, 7}}};
  machine.rough = {{8, 10.1}, {4, 10}, {2, 10.15}, {1, 11}};
  EXPECT_EQ(machine.choose(8), 2);
  EXPECT_EQ(machine.tried, (std::vector<int64_t>{8, 4, 2}));
}

TEST(ShardChoice, PartsAreWholeBlocksOfTheLargestShard) {
  const MemoryPlan plan = plan_of(Elements(10 * kMillion), Elements(8 * kMillion));
  EXPECT_EQ(cut_shards(plan.layout, 4, kStatisticsBlock), Elements(2 * kMillion));
  const Elements third = *cut_shards(plan.layout, 3, kStatisticsBlock);
  EXPECT_EQ(third.count() % kStatisticsBlock.count(), 0);
  EXPECT_GE(third * 3, Elements(8 * kMillion));
  EXPECT_LT(third * 3, Elements(8 * kMillion) + kStatisticsBlock * 3);
}

/// 7B with its weights on the host and four micro-batches, where shards as large as blocks leave no
/// room for updates during backward.
struct LargeModel {
  MemoryRequest request;
  WorkEstimate work;

  LargeModel() {
    request.device_memory = kGiB * 8;
    request.host_memory = kGiB * 48;
    request.has_nvme = true;
    request.nvme_budget = kGiB * 1000;
    request.offload_param = Tier::host;
    request.offload_optimizer = Tier::nvme;
    request.host_activations = true;
    request.micro_batches = 4;
    request.rates.nvme_read = 6e9;
    request.rates.nvme_write = 5e9;
    request.rates.host_to_device = request.rates.device_to_host = 25e9;
    work.block_forward = 0.012;
    work.block_backward[model::Recompute::block] = 0.036;
    work.head = 0.02;
    work.cpu_bytes_per_second = 40e9;
    work.device_bytes_per_second = 1e12;
  }

  MemoryPlan plan() const {
    return make_memory_plan(model::shape_config("mistral-7b"), DType::bf16, {1, 4096},
                            {kMiB * 512, kMiB * 16}, work, request);
  }

  /// Of the fourth step in a row.
  double seconds(const MemoryPlan& plan) const {
    const auto policy = scheduler::make_optimal_policy();
    auto input = compile_input(plan, plan.usual_step(), request.rates, plan.homes);
    scheduler::Schedule schedule;
    schedule.final = plan.homes;
    for (int step = 0; step < 4; ++step) {
      input.initial = std::move(schedule.final);
      schedule = policy->compile(input);
    }
    return scheduler::simulate(input, schedule).seconds;
  }
};

TEST(ShardChoice, NoSubGroupSizeIsFasterThanWhatThePlanChose) {
  LargeModel model;
  const MemoryPlan chosen = model.plan();
  EXPECT_EQ(chosen.layout.update_mode, UpdateMode::speculative);
  const double seconds = model.seconds(chosen);
  const int64_t block = chosen.layout.modules[1].spec.count.count();
  EXPECT_LT(chosen.layout.shard_max.count(), block);
  for (const int64_t parts : {4, 16}) {
    model.request.sub_group_size = Elements(align_up(block / parts, kStatisticsBlock.count()));
    EXPECT_LT(seconds, 1.02 * model.seconds(model.plan())) << parts;
  }
}

}  // namespace
}  // namespace headrace::engine
