// Matrices over the vocabulary that are cut into tiles, because they do not fit as wholes, change
// no bit.
#include <gtest/gtest.h>

#include <string>

#include "e2e/tile_variants.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace headrace {
namespace {

using test::Budget;
using test::kLeast;
using test::kPlenty;
using test::TileVariant;

constexpr int64_t kLogitsTile = 128;
/// Tiles are multiples of this: whole blocks of 65,536 elements of gradient statistics.
constexpr int64_t kUnit = 1024;
constexpr int64_t kVocabulary = 7 * kUnit + 900;
constexpr int64_t kHidden = 64;

model::ModelConfig wide_model(model::Family family, bool tied) {
  model::ModelConfig config;
  config.family = family;
  config.vocab_size = kVocabulary;
  config.hidden_size = kHidden;
  config.intermediate_size = 96;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 32;
  config.max_positions = 64;
  config.tie_word_embeddings = tied;
  config.attention_bias = family == model::Family::qwen2;
  config.qk_norm = family == model::Family::qwen3;
  return config;
}

test::CurveSettings curve_settings(const std::string& folder, DType dtype, int64_t micro_batches,
                                   bool clips) {
  return test::tile_curve(folder, dtype, {2, 32}, micro_batches, clips, kVocabulary);
}

constexpr int64_t kSmallest = 8;
constexpr int64_t kSome = 0;

struct Variant {
  TileVariant how;
  int64_t tiles;  ///< kSome: larger ones than the smallest, as the plan finds best
};

/// Room for weights and fresh gradient of a tile of 4 units in place of one.
Budget roomy(DType dtype) {
  return {true, bytes_for(Elements(kUnit) * kHidden, dtype) * 2 * 3};
}

const Variant kWhole{test::kWholeInMemory, 1};

std::vector<Variant> variants(DType dtype) {
  std::vector<Variant> all = {kWhole, {{"whole matrices on nvme", kPlenty, kPlenty}, 1}};
  for (const TileVariant& variant : test::cut_variants(roomy(dtype))) {
    const bool is_roomy = variant.device && variant.device->more > Bytes(0);
    all.push_back({variant, is_roomy ? kSome : kSmallest});
  }
  return all;
}

engine::EngineOptions options_of(const Variant& variant, const test::CurveSettings& settings) {
  engine::EngineOptions options;
  options.vocab_tile = kLogitsTile;
  options = test::options_of(variant.how, settings, options);
  const int64_t tiles = plan_of(settings, options).layout.vocab_tiles;
  if (variant.tiles == kSome) {
    EXPECT_GT(tiles, 1);
    EXPECT_LT(tiles, kSmallest);
  } else {
    EXPECT_EQ(tiles, variant.tiles);
  }
  return options;
}

struct Case {
  DType dtype = DType::f32;
  int64_t micro_batches = 1;
  bool tied = false;
  bool clips = false;
  model::Family family = model::Family::llama;
};

std::string name_of(const Case& each) {
  return std::string(to_string(each.dtype)) + (each.micro_batches > 1 ? "_sums" : "_single") +
         (each.tied ? "_tied" : "_untied") + (each.clips ? "_clips" : "_free");
}

using model::Family;

/// Every two settings meet.
const Case kPairs[] = {
    {DType::f32, 1, false, false, Family::llama}, {DType::f32, 4, true, true, Family::mistral},
    {DType::bf16, 1, true, false, Family::qwen2}, {DType::bf16, 4, false, true, Family::qwen3},
    {DType::f16, 1, true, true, Family::llama},   {DType::f16, 4, false, false, Family::qwen2},
};

/// Everything with everything, the families in turn.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t micro_batches : {1, 4}) {
      for (const bool tied : {false, true}) {
        for (const bool clips : {false, true}) {
          const Family families[] = {Family::llama, Family::mistral, Family::qwen2, Family::qwen3};
          cases.push_back({dtype, micro_batches, tied, clips, families[cases.size() % 4]});
        }
      }
    }
  }
  return cases;
}

class VocabularyTiles : public testing::TestWithParam<Case> {
 protected:
  static void expect_same_bits(const Case& each);
};

void VocabularyTiles::expect_same_bits(const Case& each) {
  const test::TemporaryFolder folder;
  model::init_model(wide_model(each.family, each.tied), DType::f32, 3, folder.path());
  const auto settings = curve_settings(folder.path(), each.dtype, each.micro_batches, each.clips);
  std::optional<test::Curve> whole;
  for (const Variant& variant : variants(each.dtype)) {
    SCOPED_TRACE(variant.how.name);
    const test::Curve curve = train_curve(settings, options_of(variant, settings));
    if (!whole) {
      whole = curve;
      EXPECT_NE(curve.losses.front(), curve.losses.back());
    }
    test::expect_same_bits(curve, *whole);
  }
}

TEST_P(VocabularyTiles, ChangeNoBit) {
  expect_same_bits(GetParam());
}

/// Run with the label slow.
class VocabularyTilesSlow : public VocabularyTiles {};
TEST_P(VocabularyTilesSlow, ChangeNoBit) {
  expect_same_bits(GetParam());
}

const auto kCaseName = [](const auto& instance) { return name_of(instance.param); };
INSTANTIATE_TEST_SUITE_P(Pairs, VocabularyTiles, testing::ValuesIn(kPairs), kCaseName);
INSTANTIATE_TEST_SUITE_P(All, VocabularyTilesSlow, testing::ValuesIn(all_cases()), kCaseName);

/// The fourth step is guessed not to be clipped, and is.
TEST(TiledUpdates, AheadOfTheNormAreRedone) {
  const test::TemporaryFolder folder;
  model::init_model(wide_model(Family::llama, false), DType::f32, 3, folder.path());
  test::CurveSettings settings = curve_settings(folder.path(), DType::bf16, 1, true);
  const Variant tiled{{"larger tiles", roomy(DType::bf16), kPlenty}, kSome};
  const test::Curve expected = train_curve(settings, options_of(kWhole, settings));
  std::vector<engine::Speculation> seen;
  settings.observe = [&](const engine::EngineReport& report) {
    seen.push_back(report.speculation);
  };
  EXPECT_EQ(train_curve(settings, options_of(tiled, settings)), expected);
  using engine::Speculation;
  EXPECT_EQ(seen, (std::vector<Speculation>{Speculation::none, Speculation::none, Speculation::held,
                                            Speculation::redone}));
}

TEST(TiledSums, InFp32ChangeNoBit) {
  const test::TemporaryFolder folder;
  model::init_model(wide_model(model::Family::qwen3, true), DType::f32, 3, folder.path());
  const auto settings = curve_settings(folder.path(), DType::bf16, 4, true);
  Variant whole = kWhole;
  Variant tiled{{"tiled", kLeast, kLeast}, kSmallest};
  whole.how.fp32_gradients = tiled.how.fp32_gradients = true;
  EXPECT_EQ(train_curve(settings, options_of(tiled, settings)),
            train_curve(settings, options_of(whole, settings)));
}

/// A vocabulary of 100,000 entries in a device budget below one matrix of it.
TEST(LargeVocabulary, TrainsOnADeviceSmallerThanItsEmbedding) {
  constexpr int64_t kLarge = 100'000;
  model::ModelConfig config = wide_model(model::Family::llama, true);
  config.vocab_size = kLarge;
  const test::TemporaryFolder folder;
  model::init_model(config, DType::bf16, 3, folder.path());
  auto settings = curve_settings(folder.path(), DType::bf16, 1, true);
  settings.steps = test::random_steps(5, 2, 1, settings.shape, kLarge);
  engine::EngineOptions options;
  options.vocab_tile = kLogitsTile;
  options.pin_memory = false;
  options.memory.host_memory = kGiB;
  const test::Curve in_memory = train_curve(settings, options);
  options.memory.device_memory = kMiB * 8;
  EXPECT_LT(*options.memory.device_memory, bytes_for(Elements(kLarge) * kHidden, DType::bf16));
  options.memory.host_memory = kMiB * 32;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  EXPECT_EQ(train_curve(settings, options), in_memory);
}

}  // namespace
}  // namespace headrace
