// Blocks that are cut into tiles, because they do not fit as wholes: every number of tiles gives
// the same bits, and the curve of whole blocks up to rounding.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"
#include "e2e/cuda_training.h"
#include "e2e/tile_variants.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace headrace {
namespace {

using model::Family;
using test::Budget;
using test::TileVariant;

constexpr int64_t kPiece = 32;
constexpr int64_t kIntermediate = 11 * kPiece + 9;
constexpr int64_t kVocabulary = 203;

/// Blocks are most of the model.
model::ModelConfig deep_model(Family family) {
  model::ModelConfig config;
  config.family = family;
  config.vocab_size = kVocabulary;
  config.hidden_size = 64;
  config.intermediate_size = kIntermediate;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.max_positions = 64;
  config.tie_word_embeddings = family == Family::qwen3;
  config.attention_bias = family == Family::qwen2 || family == Family::llama;
  config.output_bias = config.mlp_bias = family == Family::llama;
  config.qk_norm = family == Family::qwen3;
  return config;
}

test::CurveSettings curve_settings(const std::string& folder, DType dtype, int64_t micro_batches,
                                   bool clips) {
  return test::tile_curve(folder, dtype, {2, 16}, micro_batches, clips, kVocabulary);
}

/// Room for weights and fresh gradient of a few more pieces.
Budget roomy(DType dtype) {
  return {true, bytes_for(Elements(3 * kPiece * 64), dtype) * 2 * 4};
}

engine::EngineOptions options_of(const TileVariant& variant, const test::CurveSettings& settings) {
  engine::EngineOptions options;
  options.vocab_tile = 64;
  options.block_piece = kPiece;
  return test::options_of(variant, settings, options);
}

int64_t tiles_of(const test::CurveSettings& settings, const engine::EngineOptions& options) {
  return plan_of(settings, options).layout.mlp_tiles;
}

/// The curve of whole blocks.
test::Curve train_whole(const test::CurveSettings& settings) {
  const engine::EngineOptions options = options_of(test::kWholeInMemory, settings);
  EXPECT_EQ(tiles_of(settings, options), 0);
  return train_curve(settings, options);
}

struct Case {
  DType dtype = DType::f32;
  int64_t micro_batches = 1;
  bool clips = false;
  Family family = Family::llama;
};

std::string name_of(const Case& each) {
  return std::string(to_string(each.dtype)) + (each.micro_batches > 1 ? "_sums" : "_single") +
         (each.clips ? "_clips" : "_free");
}

/// What rounding makes of a step with learning rate 1e-3 after three or four of them: a weight
/// whose gradient is about zero may go the other way.
double weight_tolerance(DType dtype) {
  return dtype == DType::f32 ? 2e-4 : 8e-3;
}

double loss_tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-5 : 1e-2;
}

void expect_near(const test::Curve& curve, const test::Curve& whole, DType dtype) {
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    EXPECT_NEAR(curve.losses[step], whole.losses[step], loss_tolerance(dtype));
    EXPECT_NEAR(curve.gradient_norms[step] / whole.gradient_norms[step], 1, loss_tolerance(dtype));
  }
  EXPECT_LE(test::largest_difference(curve.weights, whole.weights), weight_tolerance(dtype));
}

class BlockTiles : public testing::TestWithParam<Case> {
 protected:
  static void expect_same_curves(const Case& each);
};

void BlockTiles::expect_same_curves(const Case& each) {
  const test::TemporaryFolder folder;
  model::init_model(deep_model(each.family), DType::f32, 3, folder.path());
  const auto settings = curve_settings(folder.path(), each.dtype, each.micro_batches, each.clips);
  const test::Curve whole = train_whole(settings);
  EXPECT_NE(whole.losses.front(), whole.losses.back());
  std::optional<test::Curve> first;
  std::set<int64_t> seen;
  for (const TileVariant& variant : test::cut_variants(roomy(each.dtype))) {
    SCOPED_TRACE(variant.name);
    const engine::EngineOptions options = options_of(variant, settings);
    seen.insert(tiles_of(settings, options));
    const test::Curve curve = train_curve(settings, options);
    if (!first) {
      first = curve;
      expect_near(curve, whole, each.dtype);
    }
    EXPECT_EQ(curve.losses, first->losses);
    EXPECT_TRUE(curve.weights == first->weights);
    // Squares are added module by module.
    for (size_t step = 0; step < curve.gradient_norms.size(); ++step) {
      EXPECT_NEAR(curve.gradient_norms[step] / first->gradient_norms[step], 1, 1e-13);
    }
  }
  EXPECT_GT(*seen.begin(), 0) << "all are cut";
  EXPECT_GT(seen.size(), 1U);
}

TEST_P(BlockTiles, GiveTheCurveOfWholeBlocksAndOneOfTheirOwn) {
  expect_same_curves(GetParam());
}

const Case kCases[] = {
    {DType::f32, 1, false, Family::llama},
    {DType::bf16, 4, true, Family::qwen3},
    {DType::f16, 1, true, Family::qwen2},
};
const Case kOtherCases[] = {
    {DType::f32, 4, true, Family::qwen3},
    {DType::bf16, 1, false, Family::mistral},
    {DType::f16, 4, false, Family::llama},
};
const auto kCaseName = [](const auto& instance) { return name_of(instance.param); };
INSTANTIATE_TEST_SUITE_P(Some, BlockTiles, testing::ValuesIn(kCases), kCaseName);

/// Run with the label slow.
class BlockTilesSlow : public BlockTiles {};
TEST_P(BlockTilesSlow, GiveTheCurveOfWholeBlocksAndOneOfTheirOwn) {
  expect_same_curves(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Others, BlockTilesSlow, testing::ValuesIn(kOtherCases), kCaseName);

engine::EngineOptions with_device(Bytes device) {
  engine::EngineOptions options;
  options.pin_memory = false;
  options.block_piece = 128;
  options.memory.device_memory = device;
  options.memory.host_memory = kMiB * 96;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  return options;
}

/// On the fake GPU, whose products may add otherwise than the CPU's.
TEST(BlockTilesOnGpu, GiveOneCurveOfTheirOwnToo) {
  const test::TemporaryFolder folder;
  model::init_model(deep_model(Family::qwen3), DType::f32, 3, folder.path());
  const auto settings = curve_settings(folder.path(), DType::bf16, 2, true);
  const test::Curve whole = train_whole(settings);
  std::optional<test::Curve> first;
  std::set<int64_t> seen;
  // Room for all of an MLP as one tile, with its gradient, where there was a piece.
  const Bytes one_tile =
      bytes_for(Elements(3 * 64) * (kIntermediate - kPiece), settings.dtype) * 2 + kKiB * 16;
  for (const Bytes more : {Bytes(0), one_tile}) {
    engine::EngineOptions options =
        test::on_gpu(with_device(kGiB), std::make_shared<device::testing::FakeCuda>());
    options.block_piece = kPiece;
    options.memory.device_memory = least_budgets(settings, options).device + more;
    const int64_t tiles = tiles_of(settings, options);
    EXPECT_GT(tiles, 0);
    EXPECT_TRUE(seen.insert(tiles).second);
    const test::Curve curve = train_curve(settings, options);
    if (!first) {
      first = curve;
      expect_near(curve, whole, settings.dtype);
    }
    EXPECT_EQ(curve.losses, first->losses);
    EXPECT_TRUE(curve.weights == first->weights);
  }
}

/// A block of 12 MiB, and as much for its gradient, in a device of less than a tenth of the two.
/// Just below what the plan says is needed, it is refused.
TEST(LargeBlocks, TrainOnADeviceMuchSmallerThanOne) {
  model::ModelConfig config = deep_model(Family::llama);
  config.intermediate_size = 32768;
  config.layers = 2;
  const test::TemporaryFolder folder;
  model::init_model(config, DType::bf16, 3, folder.path());
  auto settings = curve_settings(folder.path(), DType::bf16, 1, true);
  settings.steps.resize(2);
  settings.learning_rates.resize(2);
  engine::EngineOptions in_memory = with_device(kMiB * 256);
  in_memory.memory.offload_param.reset();
  in_memory.memory.offload_optimizer.reset();
  in_memory.memory.host_memory = kGiB;
  const test::Curve whole = train_curve(settings, in_memory);
  const Bytes least = least_budgets(settings, with_device(kGiB)).device;
  const Bytes block = bytes_for(model::module_specs(config)[1].count, DType::bf16);
  EXPECT_LT(least * 10, block * 2);
  expect_near(train_curve(settings, with_device(least)), whole, DType::bf16);
  EXPECT_THROW(train_curve(settings, with_device(Bytes(least.count() - least.count() / 100))),
               CapacityError);
}

}  // namespace
}  // namespace headrace
