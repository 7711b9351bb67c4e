#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "model/presets.h"
#include "tests/engine/memory_plan_fixture.h"

namespace headrace::engine {
namespace {

std::vector<MemoryRequest> all_requests() {
  std::vector<MemoryRequest> requests;
  const std::optional<Tier> choices[] = {std::nullopt, Tier::host, Tier::nvme};
  for (const auto& param : choices) {
    for (const auto& optimizer : choices) {
      for (const bool has_device : {true, false}) {
        requests.push_back(request_of(param, optimizer, optimizer == Tier::nvme));
        if (!has_device) {
          requests.back().device_memory.reset();
        }
      }
    }
  }
  return requests;
}

TEST(MemoryPlan, TheStatedMinimumWorksAndLessIsRefused) {
  for (const bool tied : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (MemoryRequest request : all_requests()) {
        const auto config = small_model(tied);
        const MinimumBudgets minimum = minimum_budgets(config, dtype, kShape, kNeeds, request);
        request.host_memory = minimum.host;
        if (request.device_memory) {
          request.device_memory = minimum.device;
        }
        EXPECT_EQ(plan(config, dtype, request).minimum_host, minimum.host);
        MemoryRequest less = request;
        less.host_memory = minimum.host - Bytes(1);
        EXPECT_THROW(plan(config, dtype, less), CapacityError);
        if (request.device_memory) {
          less = request;
          less.device_memory = minimum.device - Bytes(1);
          EXPECT_THROW(plan(config, dtype, less), CapacityError);
        }
      }
    }
  }
}

TEST(MemoryPlan, EverythingIsCountedAndNothingTwice) {
  const auto config = small_model(false);
  const MemoryPlan made = plan(config, DType::bf16, request_of(Tier::nvme, Tier::nvme, true));
  int64_t elements = 0;
  std::set<uint32_t> seen;
  for (const ModuleObjects& module : made.layout.modules) {
    elements += module.spec.count.count();
    EXPECT_TRUE(seen.insert(index_of(module.weights)).second);
    for (const ObjectId gradient : module.gradients) {
      EXPECT_TRUE(seen.insert(index_of(gradient)).second);
    }
    Elements next;
    for (const Shard& shard : module.shards) {
      EXPECT_EQ(shard.first, next);
      EXPECT_EQ(shard.first.count() % kStatisticsBlock.count(), 0);
      next = shard.first + shard.count;
      EXPECT_TRUE(seen.insert(index_of(shard.state)).second);
      EXPECT_TRUE(seen.insert(index_of(*shard.accumulator)).second);
      EXPECT_GE(made.layout.objects[index_of(shard.state)].size,
                bytes_for(shard.count, DType::f32) * 2 + bytes_for(shard.count, DType::u16));
    }
    EXPECT_EQ(next, module.spec.count);
  }
  const StateBytes state = state_bytes(made.layout);
  const int64_t slack = 4096 * static_cast<int64_t>(made.layout.objects.size());
  EXPECT_NEAR(static_cast<double>(state.weights.count()), static_cast<double>(2 * elements),
              static_cast<double>(slack));
  EXPECT_NEAR(static_cast<double>(state.optimizer.count()), static_cast<double>(10 * elements),
              static_cast<double>(slack));
  MemoryRequest whole_master = request_of(Tier::nvme, Tier::nvme, true);
  whole_master.state.split_master = false;
  const StateBytes larger = state_bytes(plan(config, DType::bf16, whole_master).layout);
  EXPECT_NEAR(static_cast<double>(larger.optimizer.count()), static_cast<double>(12 * elements),
              static_cast<double>(slack));
  EXPECT_NEAR(static_cast<double>(state.gradients.count()), static_cast<double>(2 * elements),
              static_cast<double>(slack));
  MemoryRequest sums = request_of(Tier::nvme, Tier::nvme, true);
  sums.fp32_gradients = true;
  EXPECT_NEAR(
      static_cast<double>(state_bytes(plan(config, DType::bf16, sums).layout).gradients.count()),
      static_cast<double>(4 * elements), static_cast<double>(slack));
  sums.fp32_gradients = false;
  sums.accumulation_order = AccumulationOrder::micro_batch_major;
  EXPECT_NEAR(
      static_cast<double>(state_bytes(plan(config, DType::bf16, sums).layout).gradients.count()),
      static_cast<double>(4 * elements), static_cast<double>(slack))
      << "rounded when the step's last micro-batch is over";
}

TEST(MemoryPlan, OneGradientPerStepIsNotSummed) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.micro_batches = 1;
  for (const bool tied : {false, true}) {
    const MemoryPlan made = plan(small_model(tied), DType::bf16, request);
    int64_t expected = 0;
    for (size_t i = 0; i < made.layout.modules.size(); ++i) {
      const ModuleObjects& module = made.layout.modules[i];
      const bool sums = tied && i == made.layout.embed();  // the head's gradient and its own
      EXPECT_EQ(module.shards.front().accumulator.has_value(), sums) << module.spec.name;
      expected += module.spec.count.count() * 2;
    }
    EXPECT_NEAR(static_cast<double>(state_bytes(made.layout).gradients.count()),
                static_cast<double>(expected),
                4096.0 * static_cast<double>(made.layout.objects.size()));
  }
}

TEST(MemoryPlan, LayerMajorKeepsTheActivationsOfAllMicroBatches) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.micro_batches = 4;
  request.accumulation_order = AccumulationOrder::layer_major;
  const MemoryPlan layer_major = plan(small_model(false), DType::bf16, request);
  request.accumulation_order = AccumulationOrder::micro_batch_major;
  const MemoryPlan micro_batch_major = plan(small_model(false), DType::bf16, request);
  EXPECT_EQ(state_bytes(layer_major.layout).activations,
            state_bytes(micro_batch_major.layout).activations * 4);
}

/// Each use of the weights by forward or backward, over the trace: runs of one module are one
/// visit.
int64_t weight_visits(const MemoryPlan& made) {
  int64_t visits = 0;
  std::optional<size_t> last;
  for (const StepOperation& step : made.training.operations) {
    const bool computes = step.kind < StepKind::accumulate;
    if (computes && step.module != last) {
      ++visits;
      last = step.module;
    }
  }
  return visits;
}

TEST(MemoryPlan, LayerMajorVisitsWeightsTwicePerStep) {
  const auto config = small_model(false);  // embed, 4 blocks, head
  for (const int64_t micro_batches : {1, 3}) {
    MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
    request.micro_batches = micro_batches;
    request.accumulation_order = AccumulationOrder::layer_major;
    EXPECT_EQ(weight_visits(plan(config, DType::bf16, request)), 11);
    request.accumulation_order = AccumulationOrder::micro_batch_major;
    EXPECT_EQ(weight_visits(plan(config, DType::bf16, request)), 10 * micro_batches + 1);
  }
}

/// The automatic choice takes what fits: activations of one micro-batch where memory holds no more.
TEST(MemoryPlan, AutomaticOrderFallsBackToWhatFits) {
  MemoryRequest request = request_of(Tier::host, Tier::host, false);
  request.micro_batches = 16;
  const auto config = small_model(false);
  const MinimumBudgets minimum = minimum_budgets(config, DType::bf16, kShape, kNeeds, request);
  request.device_memory = minimum.device;
  EXPECT_EQ(plan(config, DType::bf16, request).layout.order, AccumulationOrder::micro_batch_major);
  request.accumulation_order = AccumulationOrder::layer_major;
  EXPECT_THROW(plan(config, DType::bf16, request), CapacityError);
  request.accumulation_order.reset();
  request.device_memory = kMiB * 64;
  request.offload_param = Tier::nvme;
  EXPECT_EQ(plan(config, DType::bf16, request).layout.order, AccumulationOrder::layer_major);
}

/// Alignment of slots and arrays is all that the arenas hold beyond the values.
TEST(MemoryPlan, OverheadOfTheArenasIsBelowTwoPercent) {
  for (const std::string& name :
       {std::string("tiny"), std::string("smol"), std::string("qwen3-0.6b")}) {
    const model::ModelConfig config = model::preset_config(name);
    LayoutOptions options;
    options.dtype = DType::bf16;
    options.shard_max = Elements(1 << 20);
    options.tokens = 512;
    const StateBytes state = state_bytes(make_layout(config, options));
    int64_t values = 0;
    for (const model::ModuleSpec& module : model::module_specs(config)) {
      for (const model::ParameterSpec& parameter : module.parameters) {
        values += parameter.count.count();
      }
    }
    const auto planned = static_cast<double>((state.weights + state.optimizer).count());
    EXPECT_LE(planned, 1.02 * 12 * static_cast<double>(values)) << name;
  }
}

TEST(MemoryPlan, SubGroupSizeIsHonored) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.host_memory = kGiB;
  request.sub_group_size = Elements(100'000);
  for (const ModuleObjects& module : plan(small_model(false), DType::f32, request).layout.modules) {
    for (const Shard& shard : module.shards) {
      EXPECT_LE(shard.count.count(), 100'000);
    }
  }
}

TEST(MemoryPlan, NvmeWithoutAPathNamesTheSettings) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.has_nvme = false;
  try {
    plan(small_model(false), DType::f32, request);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("--nvme-path"), std::string::npos);
  }
}

TEST(MemoryPlan, DiskThatCannotHoldTwoGenerationsIsRefused) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  const Bytes needed = plan(small_model(false), DType::f32, request).minimum_nvme;
  request.nvme_budget = needed;
  EXPECT_NO_THROW(plan(small_model(false), DType::f32, request));
  request.nvme_budget = needed - Bytes(1);
  EXPECT_THROW(plan(small_model(false), DType::f32, request), CapacityError);
}

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

TEST(MemoryPlan, UpdatesOverlapWhereTheyCanBeTakenBack) {
  const auto mode = [](std::optional<Tier> optimizer, bool needs_norm, bool overlap) {
    MemoryRequest request = request_of(Tier::host, optimizer, true);
    request.updates_need_norm = needs_norm;
    request.optimizer_overlap = overlap;
    return plan(small_model(false), DType::bf16, request).layout.update_mode;
  };
  EXPECT_EQ(mode(Tier::nvme, true, true), UpdateMode::speculative);
  EXPECT_EQ(mode(Tier::nvme, false, true), UpdateMode::during_backward);
  EXPECT_EQ(mode(Tier::host, false, true), UpdateMode::during_backward);
  EXPECT_EQ(mode(Tier::host, true, true), UpdateMode::after_norm) << "no old values are kept";
  EXPECT_EQ(mode(Tier::nvme, true, false), UpdateMode::after_norm);
}

}  // namespace
}  // namespace headrace::engine
