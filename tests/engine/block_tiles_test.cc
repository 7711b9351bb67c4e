// Layouts, traces and plans of blocks that are cut into tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "engine/block_operations.h"
#include "tests/engine/plan_models.h"

namespace headrace::engine {
namespace {

using model::BlockCut;
using test::kShape;
using test::request_of;

/// Blocks of 16 pieces in the MLP, and one as large in attention.
model::ModelConfig deep_model() {
  model::ModelConfig config = test::small_model(false);
  config.intermediate_size = 2048;
  config.vocab_size = 100;
  return config;
}

NetworkNeeds deep_needs() {
  NetworkNeeds needs = test::kNeeds;
  needs.block_pieces = {1, 128};
  needs.cut_workspace = needs.cut_tiled_workspace = needs.workspace / 2;
  needs.block_sum = kKiB * 64;
  return needs;
}

TEST(BlockCuts, AreOfWholePiecesAndEven) {
  model::ModelConfig config = deep_model();
  for (const int64_t intermediate : {300, 2048, 2100, 100'000}) {
    config.intermediate_size = intermediate;
    const std::vector<BlockCut> cuts = block_cut_choices(config, {1, 128});
    EXPECT_EQ(cuts.front(), BlockCut());
    for (size_t i = 1; i < cuts.size(); ++i) {
      const int64_t tiles = cuts[i].mlp_tiles(config);
      EXPECT_LE(tiles, kMostBlockTiles);
      EXPECT_TRUE(cuts[i].mlp_rows % 128 == 0 || tiles == 1);
      EXPECT_TRUE(i == 1 || cuts[i].mlp_rows <= cuts[i - 1].mlp_rows);
      EXPECT_GE(cuts[i].kv_heads, 1);
      EXPECT_LE(cuts[i].kv_heads, config.kv_heads);
      // No tile could be a piece smaller with as many of them.
      const int64_t pieces = (intermediate + 127) / 128;
      EXPECT_EQ((cuts[i].mlp_rows + 127) / 128, (pieces + tiles - 1) / tiles);
    }
    EXPECT_EQ(cuts[1].mlp_tiles(config), 1) << "attention and MLP";
  }
  config.intermediate_size = 2048;
  EXPECT_EQ(block_cut_choices(config, {1, 128}).back(), (BlockCut{2, 128}))
      << "two heads are as large as a tile of the MLP";
  EXPECT_EQ(block_cut_choices(config, {1, 2048}), std::vector<BlockCut>{{}}) << "one piece";
  EXPECT_EQ(block_cut_choices(config, {}), std::vector<BlockCut>{{}});
}

TEST(BlockCuts, AreAsFewAsTheBudgetAllows) {
  const auto config = deep_model();
  const NetworkNeeds needs = deep_needs();
  for (const int64_t micro_batches : {1, 3}) {
    MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
    request.micro_batches = micro_batches;
    const MinimumBudgets least = minimum_budgets(config, DType::bf16, kShape, needs, request);
    const auto tiles_with = [&](Bytes device) {
      request.device_memory = device;
      const MemoryPlan plan =
          make_memory_plan(config, DType::bf16, kShape, needs, WorkEstimate(), request);
      EXPECT_EQ(plan.minimum_device, least.device);
      return plan.layout.mlp_tiles;
    };
    EXPECT_EQ(tiles_with(least.device), 16);
    EXPECT_EQ(tiles_with(kMiB * 64), 0) << "whole";
    std::vector<int64_t> tiles;
    // A tile with its gradient.
    const Bytes unit = bytes_for(Elements(3 * 128) * config.hidden_size, DType::bf16) * 2;
    for (int units = 0; units <= 40; units += 5) {
      tiles.push_back(tiles_with(least.device + unit * units));
    }
    EXPECT_EQ(tiles.back(), 0);
    EXPECT_GT(tiles[1], 0);
    EXPECT_LT(tiles[1], tiles[0]);
    request.device_memory = Bytes(least.device.count() - 4096);
    EXPECT_THROW(make_memory_plan(config, DType::bf16, kShape, needs, WorkEstimate(), request),
                 CapacityError);
  }
}

/// Saved values belong to whole blocks.
TEST(BlockCuts, AreNotTakenWhereTheRequestWantsSavedValues) {
  NetworkNeeds needs = deep_needs();
  needs.saved[model::Recompute::mlp] = kKiB * 64;
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  const auto least = [&] {
    return minimum_budgets(deep_model(), DType::bf16, kShape, needs, request).device;
  };
  const Bytes cut = least();
  request.recompute = model::Recompute::mlp;
  EXPECT_GT(least(), cut * 3 / 2);
  request.recompute = model::Recompute::block;
  EXPECT_EQ(least(), cut);
}

LayoutOptions cut_options(AccumulationOrder order) {
  LayoutOptions options;
  options.dtype = DType::bf16;
  options.shard_max = kStatisticsBlock;
  options.tokens = 128;
  options.micro_batches = 3;
  options.order = order;
  options.cut = {1, 800};  // 2 tiles of attention, 3 of the MLP
  options.block_sum_bytes = kKiB * 64;
  return options;
}

TEST(CutBlocks, HaveTheirModulesInOrder) {
  const ModelLayout layout = make_layout(deep_model(), cut_options(AccumulationOrder::layer_major));
  std::vector<std::string> names;
  for (size_t i = layout.block(1); i < layout.block(2); ++i) {
    names.push_back(layout.modules[i].spec.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"block.1.attention.norms", "block.1.attention.0",
                                             "block.1.attention.1", "block.1.mlp.norms",
                                             "block.1.mlp.0", "block.1.mlp.1", "block.1.mlp.2"}));
  EXPECT_EQ(layout.modules[layout.norm()].spec.name, "norm");
  EXPECT_EQ(layout.modules[layout.head()].spec.name, "head");
  EXPECT_EQ(layout.block_sums.size(), 3U);
}

/// Every module of every block gets one gradient per micro-batch, which is taken before the object
/// is written again, and what goes from tile to tile is dead at the end.
TEST(CutBlocks, EveryGradientIsTakenOnce) {
  for (const auto order : {AccumulationOrder::layer_major, AccumulationOrder::micro_batch_major}) {
    const ModelLayout layout = make_layout(deep_model(), cut_options(order));
    const StepTrace trace = make_training_trace(layout, 3, UpdateMode::after_norm, WorkEstimate());
    std::map<size_t, std::set<int64_t>> computed;
    std::map<size_t, std::set<int64_t>> taken;
    std::map<uint32_t, int64_t> fresh;  // micro-batch whose gradient an object has
    for (size_t i = 0; i < trace.operations.size(); ++i) {
      const StepOperation& step = trace.operations[i];
      const bool is_block =
          step.module >= layout.block(0) && step.module < layout.block(layout.layers());
      if (!is_block) {
        continue;
      }
      const uint32_t gradient = index_of(layout.modules[step.module].gradient_of(step.micro_batch));
      if (BlockStep{step.kind, step.layer, step.tile}.gives_gradient()) {
        EXPECT_TRUE(computed[step.module].insert(step.micro_batch).second);
        EXPECT_TRUE(fresh.emplace(gradient, step.micro_batch).second) << "not taken before";
        EXPECT_EQ(trace.trace.operations[i].uses.back().object,
                  layout.modules[step.module].gradient_of(step.micro_batch));
      } else if (step.kind == StepKind::accumulate && step.shard == 0) {
        EXPECT_TRUE(taken[step.module].insert(step.micro_batch).second);
        EXPECT_EQ(fresh.at(gradient), step.micro_batch);
        fresh.erase(gradient);
      }
    }
    EXPECT_EQ(computed.size(), layout.block(layout.layers()) - layout.block(0));
    EXPECT_EQ(computed, taken);
    EXPECT_TRUE(fresh.empty());
    std::map<uint32_t, bool> is_dead;
    for (const auto& operation : trace.trace.operations) {
      for (const scheduler::Use& use : operation.uses) {
        is_dead[index_of(use.object)] = use.discard_after;
      }
    }
    for (const auto* objects : {&layout.block_sums, &layout.residuals}) {
      for (const ObjectId object : *objects) {
        EXPECT_TRUE(is_dead.at(index_of(object)));
      }
    }
  }
}

}  // namespace
}  // namespace headrace::engine
