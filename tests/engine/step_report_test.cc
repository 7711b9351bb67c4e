// What a step's report is made of: phases, memory, the names of its parts.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/memory_use.h"
#include "engine/metrics_log.h"
#include "engine/run_plan.h"
#include "engine/step_phases.h"
#include "tests/engine/plan_models.h"

namespace headrace::engine {
namespace {

StepTrace trace_of(const std::vector<StepKind>& kinds) {
  StepTrace trace;
  for (const StepKind kind : kinds) {
    trace.operations.push_back({.kind = kind});
    trace.trace.operations.emplace_back();
  }
  return trace;
}

TEST(StepPhases, AddUpToTheStep) {
  const StepTrace trace = trace_of(
      {StepKind::embed_forward, StepKind::block_forward, StepKind::head_train, StepKind::measure,
       StepKind::block_backward, StepKind::embed_backward, StepKind::update});
  // The measuring of the head's gradient overlaps with the block's backward.
  const StepPhases phases = phases_of(trace, {1, 3, 4, 6.5, 6, 7, 9}, 10);
  EXPECT_DOUBLE_EQ(phases.forward, 3);
  EXPECT_DOUBLE_EQ(phases.backward, 4);
  EXPECT_DOUBLE_EQ(phases.step, 3);
}

TEST(StepPhases, AHeadInTilesIsBackward) {
  const StepTrace trace = trace_of(
      {StepKind::embed_forward, StepKind::embed_forward, StepKind::block_forward,
       StepKind::head_fold, StepKind::head_fold, StepKind::head_gradients, StepKind::head_gradients,
       StepKind::head_finish, StepKind::block_backward, StepKind::embed_backward});
  const StepPhases phases = phases_of(trace, {1, 2, 3, 4, 5, 6, 7, 8, 10, 11}, 12);
  EXPECT_DOUBLE_EQ(phases.forward, 3);
  EXPECT_DOUBLE_EQ(phases.backward, 8);
  EXPECT_DOUBLE_EQ(phases.step, 1);
}

TEST(StepPhases, MicroBatchesAlternate) {
  const StepTrace trace =
      trace_of({StepKind::block_forward, StepKind::block_backward, StepKind::accumulate,
                StepKind::block_forward, StepKind::block_backward, StepKind::accumulate});
  const StepPhases phases = phases_of(trace, {1, 3, 8, 4, 6, 9}, 9);
  EXPECT_DOUBLE_EQ(phases.forward, 2);
  EXPECT_DOUBLE_EQ(phases.backward, 4);
  EXPECT_DOUBLE_EQ(phases.step, 3);
}

MemoryPlan plan_with(std::optional<Bytes> device) {
  MemoryRequest request = test::request_of(Tier::nvme, Tier::nvme, true);
  request.device_memory = device;
  request.host_memory = kMiB * 6;
  return test::plan(test::small_model(false), DType::bf16, request);
}

TEST(MemoryUse, ThePeakIsTheSchedulesAndItsPartsAddUp) {
  for (const std::optional<Bytes> device :
       {std::optional<Bytes>(kMiB * 4), std::optional<Bytes>()}) {
    const MemoryPlan plan = plan_with(device);
    const scheduler::Schedule schedule = scheduler::make_optimal_policy()->compile(
        compile_input(plan, plan.training, scheduler::Rates(), plan.homes));
    const MemoryUse use = memory_use(plan, schedule);
    for (const TierUse* tier : {&use.device, &use.host}) {
      const Bytes sum = std::accumulate(tier->by_kind.begin(), tier->by_kind.end(), Bytes(0));
      EXPECT_EQ(sum, tier->peak);
      EXPECT_LE(tier->peak, tier->arena);
    }
    EXPECT_EQ(use.host.fixed > Bytes(0), !device.has_value()) << "work space is where compute is";
    EXPECT_EQ(use.device.budget() > Bytes(0), device.has_value());
    EXPECT_GT(use.host.by_kind[static_cast<size_t>(ObjectKind::optimizer)], Bytes(0));
    // The compiler's high water is of addresses, with the holes below them.
    EXPECT_LE(use.host.peak, schedule.peak_host);
    EXPECT_GE(use.host.peak, schedule.peak_host / 2);
  }
}

TEST(MemoryUse, EveryObjectHasItsKind) {
  const MemoryPlan plan = plan_with(kMiB * 4);
  const std::vector<ObjectKind> kinds = object_kinds(plan.layout);
  Bytes by_kind[kObjectKinds];
  for (size_t i = 0; i < kinds.size(); ++i) {
    by_kind[static_cast<size_t>(kinds[i])] += plan.layout.objects[i].size;
  }
  // 2 bytes of weight and 10 of state for each parameter, and slots are rounded up to 4096.
  const StateBytes state = state_bytes(plan.layout);
  EXPECT_EQ(by_kind[static_cast<size_t>(ObjectKind::weights)], state.weights);
  EXPECT_EQ(by_kind[static_cast<size_t>(ObjectKind::optimizer)], state.optimizer);
}

TEST(MemoryUse, WhatBlocksAndHeadKeepForBackwardAreActivations) {
  model::ModelConfig config = test::small_model(false);
  config.vocab_size = 1500;
  LayoutOptions options;
  options.shard_max = kStatisticsBlock;
  options.tokens = 128;
  options.tile_rows = 512;
  options.micro_batches = 2;
  options.recompute.assign(static_cast<size_t>(config.layers), model::Recompute::none);
  options.saved_bytes[model::Recompute::none] = kMiB;
  const ModelLayout layout = make_layout(config, options);
  ASSERT_EQ(layout.vocab_tiles, 3);
  Bytes activations;
  const std::vector<ObjectKind> kinds = object_kinds(layout);
  for (size_t i = 0; i < kinds.size(); ++i) {
    activations += kinds[i] == ObjectKind::activations ? layout.objects[i].size : Bytes(0);
  }
  const StateBytes state = state_bytes(layout);
  Bytes expected = state.activations + state.saved;
  for (const auto* objects :
       {&layout.activation_gradients, &layout.softmax, &layout.normed_gradients}) {
    ASSERT_FALSE(objects->empty());
    for (const ObjectId object : *objects) {
      expected += layout.objects[index_of(object)].size;
    }
  }
  EXPECT_GE(state.saved, kMiB * config.layers);
  EXPECT_EQ(activations, expected);
}

TEST(MemoryUse, WhatTilesOfBlocksPassOnIsActivations) {
  LayoutOptions options;
  options.shard_max = kStatisticsBlock;
  options.tokens = 128;
  options.cut = {1, 64};
  options.block_sum_bytes = kMiB;
  const ModelLayout layout = make_layout(test::small_model(false), options);
  const std::vector<ObjectKind> kinds = object_kinds(layout);
  for (const auto* objects : {&layout.block_sums, &layout.residuals}) {
    ASSERT_EQ(objects->size(), 1U);
    EXPECT_EQ(kinds[index_of(objects->front())], ObjectKind::activations);
  }
}

TEST(Binding, IsTheBusiestLanesShareOfTheStep) {
  RunReport run;
  run.split.total = 4;
  run.busy[static_cast<size_t>(scheduler::Lane::compute)] = 1;
  run.busy[static_cast<size_t>(scheduler::Lane::nvme_write)] = 3;
  EXPECT_EQ(binding_of(run).lane, scheduler::Lane::nvme_write);
  EXPECT_DOUBLE_EQ(binding_of(run).share, 0.75);
}

TEST(Bound, OfTwoSchedulesInARow) {
  scheduler::StepBound first{
      .seconds = 2, .lane = scheduler::Lane::nvme_read, .lane_seconds = {2, 1}};
  first += {.seconds = 3, .lane = scheduler::Lane::nvme_write, .lane_seconds = {0.5, 3}};
  EXPECT_EQ(first.lane, scheduler::Lane::nvme_write);
  EXPECT_DOUBLE_EQ(first.seconds, 4);
  EXPECT_DOUBLE_EQ(first.lane_seconds[0], 2.5);
}

}  // namespace
}  // namespace headrace::engine
