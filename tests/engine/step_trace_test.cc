#include "engine/step_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tests/engine/plan_models.h"

namespace headrace::engine {
namespace {

using test::plan;
using test::request_of;
using test::small_model;

TEST(StepTrace, EveryModuleIsUpdatedOnceAndEveryGradientAccumulated) {
  const MemoryPlan made =
      plan(small_model(true), DType::f32, request_of(Tier::nvme, Tier::nvme, true));
  std::map<std::pair<size_t, size_t>, int> updates;
  std::map<size_t, int> accumulations;
  std::map<size_t, int> last;
  for (const StepOperation& step : made.training.operations) {
    if (step.kind == StepKind::update) {
      ++updates[{step.module, step.shard}];
    }
    if (step.kind == StepKind::accumulate && step.shard == 0) {
      ++accumulations[step.module];
    }
    if (step.shard == 0) {
      last[step.module] += step.last_gradient ? 1 : 0;
    }
  }
  for (size_t m = 0; m < made.layout.modules.size(); ++m) {
    for (size_t k = 0; k < made.layout.modules[m].shards.size(); ++k) {
      EXPECT_EQ((updates[{m, k}]), 1);
    }
    // Two micro-batches; the tied embedding has two gradients in each.
    EXPECT_EQ(accumulations[m], m == made.layout.embed() ? 4 : 2);
    EXPECT_EQ(last[m], 1);
  }
}

/// Operations of one kind by module, with their positions.
std::map<size_t, std::vector<size_t>> positions_of(const StepTrace& trace, StepKind kind) {
  std::map<size_t, std::vector<size_t>> found;
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    if (trace.operations[i].kind == kind) {
      found[trace.operations[i].module].push_back(i);
    }
  }
  return found;
}

/// The CPU never touches device memory, nor the device that of the host.
void expect_lanes_find_their_objects(const MemoryPlan& made) {
  for (const StepTrace* trace : {&made.training, &made.evaluation, &made.load, &made.save}) {
    for (const scheduler::Operation& operation : trace->trace.operations) {
      for (const scheduler::Use& use : operation.uses) {
        EXPECT_EQ(use.tier == Tier::device, operation.lane == scheduler::Lane::compute)
            << operation.name << " of " << trace->trace.name;
      }
    }
  }
}

TEST(StepTrace, EveryLaneFindsItsObjectsInItsTier) {
  for (const std::optional<Tier>& optimizer : {std::optional<Tier>(), std::optional(Tier::host)}) {
    for (const bool tied : {false, true}) {
      for (const bool fp32_gradients : {false, true}) {
        for (const int64_t micro_batches : {1, 3}) {
          MemoryRequest request = request_of({}, optimizer, true);
          request.offload_ratio = 0.5;
          request.micro_batches = micro_batches;
          request.fp32_gradients = fp32_gradients;
          request.device_memory = kGiB;
          request.host_memory = kGiB;
          expect_lanes_find_their_objects(plan(small_model(tied), DType::bf16, request));
        }
      }
    }
  }
}

/// What the device updates costs its memory's time, not that of the host.
TEST(StepTrace, UpdatesTakeTheTimeOfWhoMakesThem) {
  MemoryRequest request = request_of({}, Tier::host, true);
  request.offload_ratio = 0.5;
  request.device_memory = kGiB;
  request.host_memory = kGiB;
  const MemoryPlan made = plan(small_model(false), DType::bf16, request);
  WorkEstimate work;
  work.cpu_bytes_per_second = 1e9;
  work.device_bytes_per_second = 20e9;
  const StepTrace trace =
      make_training_trace(made.layout, request.micro_batches, UpdateMode::after_norm, work);
  int on_device = 0;
  int on_host = 0;
  for (size_t i = 0; i < trace.operations.size(); ++i) {
    const StepOperation& step = trace.operations[i];
    if (step.kind != StepKind::update) {
      continue;
    }
    const Shard& shard = made.layout.modules[step.module].shards[step.shard];
    EXPECT_EQ(step.on_device, shard.update_tier == Tier::device);
    // A split weight (8), two fp32 moments (16) and the gradient, as large as its object.
    const ModuleObjects& module = made.layout.modules[step.module];
    const double gradient = module.packed_gradient ? 2 : 4;
    const double bytes = static_cast<double>(shard.count.count()) * (24 + gradient);
    EXPECT_DOUBLE_EQ(trace.trace.operations[i].seconds, bytes / (step.on_device ? 20e9 : 1e9));
    ++(step.on_device ? on_device : on_host);
  }
  EXPECT_GT(on_device, 0);
  EXPECT_GT(on_host, 0);
}

TEST(StepTrace, OverlappedUpdatesFollowTheLastGradientOfTheirModule) {
  for (const bool tied : {false, true}) {
    for (const int64_t micro_batches : {1, 3}) {
      MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
      request.micro_batches = micro_batches;
      request.accumulation_order = AccumulationOrder::layer_major;
      const MemoryPlan made = plan(small_model(tied), DType::bf16, request);
      ASSERT_EQ(made.layout.update_mode, UpdateMode::speculative);
      const StepTrace& trace = *made.speculative;
      std::map<size_t, size_t> final_at;
      for (size_t i = 0; i < trace.operations.size(); ++i) {
        if (trace.operations[i].last_gradient) {
          final_at[trace.operations[i].module] = i;
        }
      }
      const auto updates = positions_of(trace, StepKind::update);
      const auto backward = positions_of(trace, StepKind::block_backward);
      const size_t norm = positions_of(trace, StepKind::finish_norm).begin()->second.front();
      ASSERT_EQ(updates.size(), made.layout.modules.size());
      for (const auto& [module, positions] : updates) {
        EXPECT_GT(positions.front(), final_at.at(module));
        EXPECT_LT(positions.back(), norm);
      }
      // The last block's updates come before the first block's backward.
      EXPECT_LT(updates.at(made.layout.block(made.layout.layers() - 1)).back(),
                backward.at(made.layout.block(0)).front());
    }
  }
}

TEST(StepTrace, ARedoFindsWhatASpeculativeStepHasRead) {
  for (const std::optional<Tier> weights : {std::optional(Tier::nvme), std::optional(Tier::host)}) {
    const MemoryPlan made =
        plan(small_model(false), DType::bf16, request_of(weights, Tier::nvme, true));
    ASSERT_TRUE(made.redo.has_value());
    std::map<uint32_t, bool> is_alive;  // after the speculative step
    for (const auto& operation : made.speculative->trace.operations) {
      for (const scheduler::Use& use : operation.uses) {
        is_alive[index_of(use.object)] = !use.discard_after;
      }
    }
    std::set<std::pair<size_t, size_t>> redone;
    for (size_t i = 0; i < made.redo->operations.size(); ++i) {
      const StepOperation& step = made.redo->operations[i];
      EXPECT_TRUE(redone.insert({step.module, step.shard}).second);
      const auto& uses = made.redo->trace.operations[i].uses;
      for (const scheduler::Use& use : uses) {
        EXPECT_TRUE(is_alive.at(index_of(use.object)));
      }
      // On nvme the old weights are still there; in the host they have been set aside.
      EXPECT_EQ(uses.size(), weights == Tier::host ? 4U : 3U);
    }
    size_t shards = 0;
    for (const ModuleObjects& module : made.layout.modules) {
      shards += module.shards.size();
    }
    EXPECT_EQ(redone.size(), shards);
  }
}

}  // namespace
}  // namespace headrace::engine
