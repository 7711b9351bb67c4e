// Vocabulary tiles and recompute levels on the CUDA device, here the fake one: they change no bit.
#include <gtest/gtest.h>

#include "e2e/cuda_training.h"

namespace headrace {
namespace {

using device::testing::FakeCuda;
using model::Recompute;

constexpr int32_t kVocabulary = 3 * 1024 + 77;  ///< tiles are multiples of 1024 entries
constexpr int64_t kLogitsTile = 128;

struct Variant {
  const char* name;
  bool is_tiled = false;  ///< with the smallest device budget
  Recompute recompute = Recompute::block;
  std::optional<Tier> optimizer = Tier::nvme;
};

constexpr Variant kVariants[] = {
    {"whole"},
    {"tiles", true},
    {"saves all but the MLP", false, Recompute::mlp},
    {"saves all", false, Recompute::none},
    {"tiles, saves all", true, Recompute::none},
    {"saves all, updates on the device", false, Recompute::none, std::nullopt},
};

engine::EngineOptions options_of(const Variant& variant, const test::CurveSettings& settings,
                                 const std::shared_ptr<FakeCuda>& fake) {
  engine::EngineOptions options;
  options.vocab_tile = kLogitsTile;
  engine::MemoryRequest& memory = options.memory;
  memory.host_memory = kMiB * 64;
  memory.device_memory = kMiB * 64;
  memory.offload_param = variant.optimizer;
  memory.offload_optimizer = variant.optimizer;
  memory.host_activations = variant.is_tiled;
  memory.recompute = variant.recompute;
  options = test::on_gpu(options, fake);
  if (variant.is_tiled) {
    memory.device_memory = least_budgets(settings, options).device;
  }
  const engine::MemoryPlan plan = plan_of(settings, options);
  EXPECT_EQ(plan.layout.vocab_tiles > 1, variant.is_tiled);
  EXPECT_EQ(plan.layout.recompute.front(), variant.recompute);
  return options;
}

class CudaTiles : public testing::TestWithParam<DType> {};

TEST_P(CudaTiles, AndRecomputeLevelsChangeNoBit) {
  for (const bool tied : {false, true}) {
    const test::TemporaryFolder folder;
    model::ModelConfig config = test::tiny_gpu_model(kVocabulary);
    config.layers = 2;
    config.tie_word_embeddings = tied;
    model::init_model(config, DType::f32, 3, folder.path());
    test::CurveSettings settings = test::gpu_curve(folder.path(), GetParam(), kVocabulary);
    settings.steps.resize(3);
    std::optional<test::Curve> whole;
    for (const Variant& variant : kVariants) {
      SCOPED_TRACE(variant.name);
      const auto fake = std::make_shared<FakeCuda>();
      const test::Curve curve = train_curve(settings, options_of(variant, settings, fake));
      if (!whole) {
        whole = curve;
        EXPECT_NE(curve.losses.front(), curve.losses.back());
      }
      test::expect_same_bits(curve, *whole);
      EXPECT_EQ(fake->live_objects(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaTiles, testing::Values(DType::f32, DType::bf16),
                         [](const auto& made) { return std::string(to_string(made.param)); });

}  // namespace
}  // namespace headrace
