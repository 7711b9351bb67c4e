// Matrices over the vocabulary that are cut into tiles, because they do not fit as wholes, change
// no bit.
#include <gtest/gtest.h>

#include <string>

#include "e2e/training_harness.h"
#include "engine/run_plan.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace headrace {
namespace {

using engine::AccumulationOrder;

constexpr int64_t kLogitsTile = 128;
/// Tiles are multiples of this: whole blocks of 65,536 elements of gradient statistics.
constexpr int64_t kUnit = 1024;
constexpr int64_t kVocabulary = 7 * kUnit + 900;
constexpr int64_t kHidden = 64;
constexpr double kNoClip = 1e6;
constexpr double kAlwaysClips = 1e-3;

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
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = {2, 32};
  settings.loss_scale = dtype == DType::f16 ? 1024 : 1;
  settings.gradient_clipping = 0;
  settings.check_finite = clips;
  settings.steps = test::random_steps(5, clips ? 4 : 3, micro_batches, settings.shape, kVocabulary);
  if (clips) {
    settings.adjust = [](size_t step, engine::StepNumbers& numbers) {
      numbers.gradient_clipping = step < 3 ? kNoClip : kAlwaysClips;
    };
  }
  settings.learning_rates.assign(settings.steps.size(), 1e-3);
  return settings;
}

/// How much more than the least a tier gets.
struct Budget {
  bool is_least = false;
  Bytes more;
};
const Budget kLeast{true, Bytes(0)};
const Budget kPlenty{false, kMiB * 256};

constexpr int64_t kSmallest = 8;
constexpr int64_t kSome = 0;

struct Variant {
  const char* name;
  std::optional<Budget> device;
  Budget host;
  int64_t tiles;  ///< kSome: larger ones than the smallest, as the plan finds best
  std::optional<Tier> param = Tier::nvme;
  std::optional<Tier> optimizer = Tier::nvme;
  const char* policy = "optimal";
  std::optional<AccumulationOrder> order = {};
  bool overlap = true;
  bool fp32_gradients = false;
};

/// Room for weights and fresh gradient of a tile of 4 units in place of one.
Budget roomy(DType dtype) {
  return {true, bytes_for(Elements(kUnit) * kHidden, dtype) * 2 * 3};
}

std::vector<Variant> variants(DType dtype) {
  return {
      {"whole matrices in memory", {}, kPlenty, 1, {}, {}},
      {"whole matrices on nvme", kPlenty, kPlenty, 1},
      {"least device and host", kLeast, kLeast, kSmallest},
      {"least device, lru", kLeast, kLeast, kSmallest, Tier::nvme, Tier::nvme, "lru"},
      {"least device, liveness", kLeast, kPlenty, kSmallest, Tier::nvme, Tier::nvme, "liveness"},
      {"larger tiles", roomy(dtype), kPlenty, kSome},
      {"larger tiles, no overlap",
       roomy(dtype),
       kPlenty,
       kSome,
       Tier::nvme,
       Tier::nvme,
       "optimal",
       {},
       false},
      {"offload to the host", kLeast, kPlenty, kSmallest, Tier::host, Tier::host},
      {"layer-major", kLeast, kPlenty, kSmallest, Tier::nvme, Tier::nvme, "optimal",
       AccumulationOrder::layer_major},
      {"micro-batch-major", kLeast, kPlenty, kSmallest, Tier::nvme, Tier::nvme, "optimal",
       AccumulationOrder::micro_batch_major},
      {"least host without a device tier", {}, kLeast, kSmallest},
  };
}

engine::EngineOptions options_of(const Variant& variant, const test::CurveSettings& settings) {
  engine::EngineOptions options;
  options.dtype = settings.dtype;
  options.shape = settings.shape;
  options.vocab_tile = kLogitsTile;
  options.pin_memory = false;
  options.policy = variant.policy;
  engine::MemoryRequest& memory = options.memory;
  memory.host_memory = variant.host.more;
  if (variant.device) {
    memory.device_memory = variant.device->more;
  }
  memory.has_nvme = true;
  memory.nvme_budget = kGiB;
  memory.offload_param = variant.param;
  memory.offload_optimizer = variant.optimizer;
  memory.nvme_activations = variant.optimizer == Tier::nvme;
  memory.host_activations = variant.optimizer == Tier::host;
  memory.micro_batches = static_cast<int64_t>(settings.steps[0].size());
  memory.accumulation_order = variant.order;
  memory.optimizer_overlap = variant.overlap;
  memory.updates_need_norm = settings.check_finite;
  memory.fp32_gradients = variant.fp32_gradients;
  const model::CheckpointReader reader(settings.model_folder);
  const auto device = device::make_cpu_device();
  const model::Network network(reader.config(), settings.dtype, settings.shape, *device,
                               kLogitsTile);
  const auto least = engine::minimum_budgets(reader.config(), settings.dtype, settings.shape,
                                             engine::network_needs(network), memory);
  if (variant.host.is_least) {
    memory.host_memory += least.host;
  }
  if (variant.device && variant.device->is_least) {
    *memory.device_memory += least.device;
  }
  const int64_t tiles = engine::plan_memory(network, options).layout.vocab_tiles;
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
    SCOPED_TRACE(variant.name);
    const test::Curve curve = train_curve(settings, options_of(variant, settings));
    if (!whole) {
      whole = curve;
      EXPECT_NE(curve.losses.front(), curve.losses.back());
    }
    EXPECT_EQ(curve.losses, whole->losses);
    EXPECT_EQ(curve.gradient_norms, whole->gradient_norms);
    EXPECT_TRUE(curve.weights == whole->weights);
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
  const Variant whole{"whole", {}, kPlenty, 1, {}, {}};
  const Variant tiled{"larger tiles", roomy(DType::bf16), kPlenty, kSome};
  const test::Curve expected = train_curve(settings, options_of(whole, settings));
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
  Variant whole{"whole", {}, kPlenty, 1, {}, {}};
  Variant tiled{"tiled", kLeast, kLeast, kSmallest};
  whole.fp32_gradients = tiled.fp32_gradients = true;
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
