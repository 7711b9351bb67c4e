// A run whose blocks are cut goes on with blocks in other tiles, and with whole ones; what it
// stores can be read whatever the tiles.
#include <gtest/gtest.h>

#include "e2e/resume_fixture.h"
#include "engine/repair.h"
#include "engine/state_layout.h"
#include "tiers/catalog.h"

namespace headrace {
namespace {

using nlohmann::json;
using test::Case;

/// Five pieces of 512 rows in the MLP, the last one smaller.
class BlockTilesResume : public test::TiledResumeTest {
 protected:
  BlockTilesResume() : TiledResumeTest(deep_model(), 4096) {}

  static model::ModelConfig deep_model() {
    model::ModelConfig config = test::small_model();
    config.hidden_size = 64;
    config.intermediate_size = 2200;
    config.layers = 1;
    return config;
  }

  std::vector<double> losses(const std::string& output) const {
    std::vector<double> found(test::kSteps);
    for (const json& line : result(output).curve) {
      if (line.contains("loss")) {
        found.at(line.at("step").get<size_t>() - 1) = line.at("loss");
      }
    }
    return found;
  }
};

TEST_F(BlockTilesResume, GoesOnWithOtherTilesBitForBit) {
  for (const Case& each : {Case{"nvme", 1, 1.0, "bf16"}, Case{"cpu", 2, 0.0, "fp16"}}) {
    SCOPED_TRACE(each.name());
    const json wide = config_with_device(each, kWholeDevice);
    const engine::MemoryPlan whole_blocks = plan_of(wide);
    EXPECT_EQ(whole_blocks.layout.mlp_tiles, 0);
    const int64_t least = whole_blocks.minimum_device.count();
    const json tight = config_with_device(each, least);
    EXPECT_EQ(plan_of(tight).layout.mlp_tiles, 5);
    // The first budget that has room for larger tiles.
    json between = tight;
    for (int64_t device = least; plan_of(between).layout.mlp_tiles == 5; device += least / 16) {
      between = config_with_device(each, device);
    }
    EXPECT_GT(plan_of(between).layout.mlp_tiles, 0);
    const std::string whole = each.name() + "_whole";
    const std::string parts = each.name() + "_parts";
    train(job(whole), tight);
    train(job(parts), between, 1);
    EXPECT_EQ(train(job(parts), tight, 2).resumed_from, 1);
    EXPECT_EQ(train(job(parts), between, 4).resumed_from, 2);
    EXPECT_EQ(train(job(parts), tight).resumed_from, 4);
    EXPECT_EQ(losses(parts), losses(whole));
    EXPECT_TRUE(result(parts).weights == result(whole).weights);
    EXPECT_TRUE(exported(parts) == exported(whole));
    const std::string mixed = each.name() + "_mixed";
    train(job(mixed), tight, 2);
    EXPECT_EQ(train(job(mixed), wide, 4).resumed_from, 2);
    EXPECT_EQ(train(job(mixed), tight).resumed_from, 4);
    for (size_t step = 0; step < test::kSteps; ++step) {
      EXPECT_NEAR(losses(mixed)[step], losses(whole)[step], 1e-2);
    }
  }
}

/// The columns of a tile are no whole blocks of 64, so its moments are rounded once more.
TEST_F(BlockTilesResume, EightBitMomentsGoOnInOtherTiles) {
  const Case each{.has_8bit_moments = true};
  const json wide = config_with_device(each, kWholeDevice);
  const json tight = tight_config(each);
  EXPECT_EQ(plan_of(tight).layout.mlp_tiles, 5);
  train(job("whole"), tight);
  train(job("mixed"), tight, 2);
  EXPECT_EQ(train(job("mixed"), wide, 4).resumed_from, 2);
  EXPECT_EQ(train(job("mixed"), tight).resumed_from, 4);
  for (size_t step = 0; step < test::kSteps; ++step) {
    EXPECT_NEAR(losses("mixed")[step], losses("whole")[step], 3e-2);
  }
  EXPECT_TRUE(engine::open_run(folder_ / "mixed")->verify([](Bytes, Bytes) {}).empty());
}

TEST_F(BlockTilesResume, AnImportGoesOnInTiles) {
  expect_an_import_goes_on();
}

TEST_F(BlockTilesResume, WeightsOfATileAreMadeAnewFromTheMaster) {
  json config = config_with_device({}, kWholeDevice);
  config["headrace"]["split_master"] = false;
  config["headrace"]["device_memory"] = plan_of(config).minimum_device.count();
  train(job("run", 2), config);
  const std::string directory = engine::open_run(folder_ / "run")->directories().front();
  const auto object =
      tiers::read_catalog(directory + "/catalog").objects.at("block.0.mlp.3.weights");
  // In the columns of down_proj.
  ASSERT_NO_FATAL_FAILURE(
      test::flip_bit(directory, object.extents.front(), int64_t{2} * (2 * 512 * 64 + 700)));
  const auto store = engine::open_run(folder_ / "run");
  const auto damage = store->verify([](Bytes, Bytes) {});
  ASSERT_EQ(damage.size(), 1U);
  EXPECT_NE(
      engine::describe_damage(damage.front(), engine::run_state_of(*store, std::nullopt).layout())
          .find("down_proj.weight elements 1536 to 140647 in columns 1536 to 2047"),
      std::string::npos);
  for (const tiers::Repair& repair : engine::repair_damage(*store, damage)) {
    EXPECT_TRUE(repair.is_repaired) << repair.text;
  }
  EXPECT_TRUE(store->verify([](Bytes, Bytes) {}).empty());
}

}  // namespace
}  // namespace headrace
