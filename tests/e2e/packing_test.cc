// Training with sequences that several documents share: the same bits for every placement, order of
// micro-batches and number of tiles; the loss of a step is the mean over all of its targets.
#include <gtest/gtest.h>

#include "e2e/cuda_training.h"
#include "e2e/small_model.h"
#include "e2e/tile_variants.h"
#include "model/model_config.h"

namespace headrace {
namespace {

constexpr int32_t kVocabulary = 301;
constexpr int64_t kPiece = 32;  // which cuts blocks

test::CurveSettings packed_curve(const std::string& folder, DType dtype) {
  test::CurveSettings settings =
      test::tile_curve(folder, dtype, {2, 48, true}, 3, false, kVocabulary);
  settings.adjust = [](size_t /*step*/, engine::StepNumbers& numbers) {
    numbers.mean_over_step = true;
  };
  return settings;
}

engine::EngineOptions options_of(const test::TileVariant& variant,
                                 const test::CurveSettings& settings, int64_t block_piece) {
  engine::EngineOptions options;
  options.vocab_tile = 64;
  options.block_piece = block_piece;
  return test::options_of(variant, settings, options);
}

class Packing : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    model::init_model(test::small_model(), DType::f32, 3, folder_.path());
    settings_ = packed_curve(folder_.path(), GetParam());
  }

  test::TemporaryFolder folder_;
  test::CurveSettings settings_;
};

TEST_P(Packing, PlacementChangesNoBit) {
  const auto whole = options_of(test::kWholeInMemory, settings_, model::kBlockPiece);
  const test::Curve expected = train_curve(settings_, whole);
  EXPECT_NE(expected.losses.front(), expected.losses.back());
  for (const model::Recompute level :
       {model::Recompute::none, model::Recompute::mlp, model::Recompute::block}) {
    engine::EngineOptions options = whole;
    options.memory.recompute = level;
    test::expect_same_bits(train_curve(settings_, options), expected);
  }
  for (const test::TileVariant& variant : test::cut_variants(test::kPlenty)) {
    SCOPED_TRACE(variant.name);
    const auto options = options_of(variant, settings_, model::kBlockPiece);
    EXPECT_EQ(plan_of(settings_, options).layout.mlp_tiles, 0);
    test::expect_same_bits(train_curve(settings_, options), expected);
  }
}

TEST_P(Packing, TilesOfBlocksChangeNoBit) {
  std::optional<test::Curve> expected;
  const test::Budget roomy{true, bytes_for(Elements(3 * kPiece * 96), GetParam()) * 2 * 4};
  for (const test::TileVariant& variant : test::cut_variants(roomy)) {
    SCOPED_TRACE(variant.name);
    const auto options = options_of(variant, settings_, kPiece);
    EXPECT_GT(plan_of(settings_, options).layout.mlp_tiles, 0);
    const test::Curve curve = train_curve(settings_, options);
    expected = expected ? expected : curve;
    EXPECT_EQ(curve.losses, expected->losses);
    EXPECT_TRUE(curve.weights == expected->weights);
  }
}

/// One pass over all sequences and one for each count every target once.
TEST_P(Packing, TheLossIsTheMeanOverTheTargetsOfTheStep) {
  test::CurveSettings together = settings_;
  together.shape.batch = 6;
  for (auto& batches : together.steps) {
    model::TokenBatch all;
    for (const model::TokenBatch& batch : batches) {
      EXPECT_NE(batch.counted_labels, 96);
      const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(all.ids, batch.ids);
      append(all.labels, batch.labels);
      append(all.documents.begins, batch.documents.begins);
      append(all.documents.seen_from, batch.documents.seen_from);
      append(all.documents.seen_until, batch.documents.seen_until);
      all.counted_labels += batch.counted_labels;
    }
    batches = {all};
  }
  together.adjust = {};  // one micro-batch: its mean is the step's
  const auto curve_of = [](const test::CurveSettings& settings) {
    return train_curve(settings, options_of(test::kWholeInMemory, settings, model::kBlockPiece));
  };
  const test::Curve apart = curve_of(settings_);
  const test::Curve expected = curve_of(together);
  const double tolerance = GetParam() == DType::f32 ? 1e-5 : 1e-2;
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(apart.losses[step], expected.losses[step], tolerance) << step;
    EXPECT_NEAR(apart.gradient_norms[step] / expected.gradient_norms[step], 1, tolerance) << step;
  }
  // The mean of the means is another number.
  test::CurveSettings of_means = settings_;
  of_means.adjust = {};
  EXPECT_GT(std::abs(curve_of(of_means).gradient_norms[0] / expected.gradient_norms[0] - 1), 1e-4);
}

TEST_P(Packing, TheCudaDeviceHasTheNumbersOfTheCpu) {
  test::CurveSettings settings = settings_;
  settings.shape = {2, 24, true};
  settings.steps = test::random_steps(7, 2, 2, settings.shape, kVocabulary);
  engine::EngineOptions options;
  options.memory.host_memory = kMiB * 64;
  options.memory.device_memory = kMiB * 64;
  options.vocab_tile = 64;
  const test::Curve cpu = train_curve(settings, options);
  const auto fake = std::make_shared<device::testing::FakeCuda>();
  const test::Curve gpu = train_curve(settings, test::on_gpu(options, fake));
  const double tolerance = GetParam() == DType::f32 ? 2e-5 : 2e-2;
  for (size_t step = 0; step < cpu.losses.size(); ++step) {
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], tolerance) << step;
    EXPECT_NEAR(gpu.gradient_norms[step] / cpu.gradient_norms[step], 1, 5 * tolerance) << step;
  }
  options.memory.device_memory = kMiB * 4;
  options.memory.offload_param = options.memory.offload_optimizer = Tier::nvme;
  options.memory.accumulation_order = engine::AccumulationOrder::layer_major;
  EXPECT_EQ(train_curve(settings, test::on_gpu(options, fake)), gpu);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Packing, testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return std::string(to_string(dtype.param)); });

}  // namespace
}  // namespace headrace
