// What the memory plan chooses by itself: recompute levels, and the share of the optimizer that
// stays on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/recompute_choice.h"
#include "tests/engine/memory_plan_fixture.h"

namespace headrace::engine {
namespace {

/// What small_model()'s blocks save of 128 tokens, about.
NetworkNeeds needs_with_saved() {
  NetworkNeeds needs = kNeeds;
  needs.saved[model::Recompute::mlp] = kKiB * 128;
  needs.saved[model::Recompute::none] = kKiB * 320;
  return needs;
}

/// Everything but the compute is fast here.
MemoryRequest compute_bound_request() {
  MemoryRequest request = request_of({}, {}, false);
  request.rates = {1e12, 1e12, 1e12, 1e12, 0, 0};
  return request;
}

TEST(MemoryChoices, MoreMemoryMeansLessRecomputation) {
  MemoryRequest request = compute_bound_request();
  NetworkNeeds needs = kNeeds;
  needs.saved[model::Recompute::mlp] = kKiB * 2000;
  needs.saved[model::Recompute::none] = kKiB * 2048;
  const auto config = small_model(false);
  const MinimumBudgets minimum = minimum_budgets(config, DType::bf16, kShape, needs, request);
  std::set<int64_t> seen;
  for (int64_t i = 0; i <= 8; ++i) {
    request.device_memory = minimum.device + kMiB * (2 * i);
    const MemoryPlan made =
        make_memory_plan(config, DType::bf16, kShape, needs, WorkEstimate(), request);
    const RecomputeLevels& levels = made.layout.recompute;
    EXPECT_TRUE(std::is_sorted(levels.rbegin(), levels.rend()));
    const int64_t kept = std::count(levels.begin(), levels.end(), model::Recompute::none);
    EXPECT_GE(kept, seen.empty() ? 0 : *seen.rbegin()) << i;
    EXPECT_LE(made.minimum_device, *request.device_memory);
    seen.insert(kept);
  }
  EXPECT_LT(*seen.begin(), 4);
  EXPECT_EQ(*seen.rbegin(), 4);
  EXPECT_GT(seen.size(), 2U) << "some blocks keep everything, some nothing";
}

TEST(MemoryChoices, SavedValuesCountAgainstTheBudget) {
  for (const bool nvme_activations : {false, true}) {
    MemoryRequest request = request_of(Tier::nvme, Tier::nvme, nvme_activations);
    request.recompute = model::Recompute::none;
    const NetworkNeeds needs = needs_with_saved();
    const auto config = small_model(false);
    const MinimumBudgets minimum = minimum_budgets(config, DType::bf16, kShape, needs, request);
    request.recompute = model::Recompute::block;
    const MinimumBudgets lean = minimum_budgets(config, DType::bf16, kShape, needs, request);
    const Bytes all = needs.saved[model::Recompute::none] * (nvme_activations ? 1 : 4);
    EXPECT_GE(minimum.device, lean.device + all / 2);
    EXPECT_LE(minimum.device, lean.device + all);
    request.recompute = model::Recompute::none;
    request.device_memory = minimum.device;
    const MemoryPlan made =
        make_memory_plan(config, DType::bf16, kShape, needs, WorkEstimate(), request);
    EXPECT_EQ(made.layout.recompute, RecomputeLevels(4, model::Recompute::none));
    request.device_memory = minimum.device - Bytes(1);
    try {
      make_memory_plan(config, DType::bf16, kShape, needs, WorkEstimate(), request);
      ADD_FAILURE() << "less than the minimum was accepted";
    } catch (const CapacityError& error) {
      EXPECT_NE(std::string(error.what()).find("headrace.recompute"), std::string::npos);
    }
  }
}

/// Where activations may go down to nvme, what cannot be above it at once is not saved.
TEST(MemoryChoices, TheChoiceDoesNotSendSavedValuesToTheDrive) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  const NetworkNeeds needs = needs_with_saved();
  const auto config = small_model(false);
  const MinimumBudgets minimum = minimum_budgets(config, DType::bf16, kShape, needs, request);
  request.device_memory = minimum.device;
  request.host_memory = minimum.host;
  const MemoryPlan made =
      make_memory_plan(config, DType::bf16, kShape, needs, WorkEstimate(), request);
  EXPECT_LE(state_bytes(made.layout).saved, made.device_arena + made.host_arena);
}

TEST(MemoryChoices, OffloadRatioSplitsTheOptimizerByBytes) {
  const auto config = small_model(false);
  int64_t elements = 0;
  for (const model::ModuleSpec& spec : model::module_specs(config)) {
    elements += spec.count.count();
  }
  for (const Tier home : {Tier::host, Tier::nvme}) {
    for (const double ratio : {0.0, 0.25, 0.5, 0.9, 1.0}) {
      MemoryRequest request = request_of({}, home, false);
      request.offload_ratio = ratio;
      const MemoryPlan made = plan(config, DType::bf16, request);
      int64_t on_device = 0;
      for (const ModuleObjects& module : made.layout.modules) {
        for (const Shard& shard : module.shards) {
          const auto at = made.layout.objects[index_of(shard.state)].home;
          EXPECT_EQ(at, shard.update_tier == Tier::device ? Tier::device : home);
          on_device += at == Tier::device ? shard.count.count() : 0;
        }
      }
      // A shard starts at a multiple of 65,536 elements.
      EXPECT_NEAR(static_cast<double>(on_device), (1 - ratio) * static_cast<double>(elements),
                  65536)
          << ratio;
      EXPECT_LE(static_cast<double>(on_device), (1 - ratio) * static_cast<double>(elements) + 1);
    }
  }
}

TEST(MemoryChoices, OffloadRatioCountsInTheMinimum) {
  for (const bool tied : {false, true}) {
    for (const Tier home : {Tier::host, Tier::nvme}) {
      const auto config = small_model(tied);
      MemoryRequest request = request_of(Tier::nvme, home, true);
      const MinimumBudgets whole = minimum_budgets(config, DType::bf16, kShape, kNeeds, request);
      request.offload_ratio = 0.5;
      const MinimumBudgets half = minimum_budgets(config, DType::bf16, kShape, kNeeds, request);
      EXPECT_GT(half.device, whole.device);
      request.device_memory = half.device;
      request.host_memory = half.host;
      EXPECT_EQ(plan(config, DType::bf16, request).minimum_device, half.device);
      request.device_memory = half.device - Bytes(1);
      try {
        plan(config, DType::bf16, request);
        ADD_FAILURE() << "less than the minimum was accepted";
      } catch (const CapacityError& error) {
        EXPECT_NE(std::string(error.what()).find("offload_optimizer.ratio"), std::string::npos);
      }
      request.device_memory.reset();
      request.host_memory = kMiB * 64;
      EXPECT_NO_THROW(plan(config, DType::bf16, request)) << "without a device it has no effect";
    }
  }
}

/// An open share: the device takes as much of the optimizer as fits, where the link is what counts.
TEST(MemoryChoices, IdleDeviceMemoryTakesOptimizerStateOffASlowLink) {
  const auto config = small_model(false);
  MemoryRequest request = request_of({}, Tier::host, false);
  request.micro_batches = 1;
  request.rates.host_to_device = request.rates.device_to_host = 1e7;
  const auto device_share = [&](Bytes device_memory) {
    request.device_memory = device_memory;
    const StateBytes state = state_bytes(plan(config, DType::bf16, request).layout);
    return static_cast<double>(state.optimizer_on_device.count()) /
           static_cast<double>(state.optimizer.count());
  };
  request.offload_ratio.reset();
  const Bytes minimum = minimum_budgets(config, DType::bf16, kShape, kNeeds, request).device;
  const Bytes state = state_bytes(plan(config, DType::bf16, request).layout).optimizer;
  EXPECT_EQ(device_share(minimum), 0);
  EXPECT_NEAR(device_share(minimum + state / 2), 0.5, 0.15);
  EXPECT_EQ(device_share(minimum + state * 2), 1);
  request.offload_ratio = 1;
  EXPECT_EQ(device_share(minimum + state * 2), 0) << "all of it is asked for on the host";
  request.offload_ratio.reset();
  request.offload_optimizer = Tier::nvme;
  EXPECT_EQ(device_share(minimum + state * 2), 0) << "nvme keeps the state of every step";
}

}  // namespace
}  // namespace headrace::engine
