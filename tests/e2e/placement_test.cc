// Rule 2: placement changes nothing. Losses, norms and weights are the same bits for every
// placement, budget, policy and I/O backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "e2e/small_model.h"
#include "e2e/training_harness.h"
#include "model/model_config.h"

namespace headrace {
namespace {

constexpr int64_t kSeq = 32;
constexpr int64_t kSequences = 2;
constexpr int64_t kLayers = 5;

test::CurveSettings random_curve(const std::string& folder, DType dtype, int64_t micro_batches) {
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = {kSequences, kSeq};
  if (dtype == DType::f16) {
    settings.loss_scale = 1024;
  }
  settings.steps = test::random_steps(5, 4, micro_batches, settings.shape, 301);
  settings.learning_rates.assign(settings.steps.size(), 1e-3);
  return settings;
}

struct Variant {
  const char* name;
  std::optional<int64_t> device_kib = {};
  int64_t host_kib = 0;
  std::optional<Tier> param = {};
  std::optional<Tier> optimizer = {};
  bool host_activations = false;
  bool nvme_activations = false;
  const char* policy = "optimal";
  aio::BackendKind backend = aio::BackendKind::io_uring;
  int64_t sub_group = 1'000'000'000;
  bool split_master = true;
  std::optional<engine::AccumulationOrder> order = {};
  std::optional<model::Recompute> recompute = {};
  double offload_ratio = 1;
};

const Variant kVariants[] = {
    {"all on the device", 256 << 10, 256 << 10, {}, {}, false, false},
    {"all in the host", {}, 256 << 10, {}, {}, false, false},
    {"optimizer on the host", 256 << 10, 256 << 10, {}, Tier::host, false, false},
    {"cpu offload", 4096, 256 << 10, Tier::host, Tier::host, true, false},
    {"weights on the host, optimizer on nvme", 4096, 8192, Tier::host, Tier::nvme, true, false},
    {"nvme offload", 8192, 16384, Tier::nvme, Tier::nvme, false, false},
    {"nvme offload, activations on nvme", 4096, 6144, Tier::nvme, Tier::nvme, false, true},
    {"tiny budgets", 0, 0, Tier::nvme, Tier::nvme, false, true},
    {"tiny budgets, lru", 0, 0, Tier::nvme, Tier::nvme, false, true, "lru"},
    {"liveness", 4096, 6144, Tier::nvme, Tier::nvme, false, true, "liveness"},
    {"tiny budgets, liveness", 0, 0, Tier::nvme, Tier::nvme, false, true, "liveness"},
    {"tiny budgets, thread pool", 0, 0, Tier::nvme, Tier::nvme, false, true, "optimal",
     aio::BackendKind::thread_pool},
    {"small sub-groups", 4096, 6144, Tier::nvme, Tier::nvme, false, true, "optimal",
     aio::BackendKind::io_uring, 65536},
    {"nvme offload, whole master", 4096, 6144, Tier::nvme, Tier::nvme, false, true, "optimal",
     aio::BackendKind::io_uring, 65536, false},
    {"whole master on the device",
     256 << 10,
     256 << 10,
     {},
     {},
     false,
     false,
     "optimal",
     aio::BackendKind::io_uring,
     1'000'000'000,
     false},
    {"layer-major", 4096, 8192, Tier::nvme, Tier::nvme, false, true, "optimal",
     aio::BackendKind::io_uring, 1'000'000'000, true, engine::AccumulationOrder::layer_major},
    {"micro-batch-major", 4096, 8192, Tier::nvme, Tier::nvme, false, true, "optimal",
     aio::BackendKind::io_uring, 1'000'000'000, true, engine::AccumulationOrder::micro_batch_major},
    {"layer-major, tiny budgets", 0, 0, Tier::nvme, Tier::nvme, false, true, "optimal",
     aio::BackendKind::io_uring, 1'000'000'000, true, engine::AccumulationOrder::layer_major},
    {.name = "keeps everything, all on the device",
     .device_kib = 256 << 10,
     .host_kib = 256 << 10,
     .recompute = model::Recompute::none},
    {.name = "keeps everything, which goes down to nvme",
     .device_kib = 0,
     .host_kib = 0,
     .param = Tier::nvme,
     .optimizer = Tier::nvme,
     .nvme_activations = true,
     .recompute = model::Recompute::none},
    {.name = "computes the MLP again, layer-major",
     .device_kib = 0,
     .host_kib = 0,
     .param = Tier::host,
     .optimizer = Tier::nvme,
     .host_activations = true,
     .order = engine::AccumulationOrder::layer_major,
     .recompute = model::Recompute::mlp},
    {.name = "computes the MLP again without a device tier",
     .host_kib = 0,
     .param = Tier::nvme,
     .optimizer = Tier::nvme,
     .order = engine::AccumulationOrder::micro_batch_major,
     .recompute = model::Recompute::mlp},
    {.name = "computes all again, all on the device",
     .device_kib = 256 << 10,
     .host_kib = 256 << 10,
     .recompute = model::Recompute::block},
    {.name = "half of the optimizer on the host",
     .device_kib = 256 << 10,
     .host_kib = 256 << 10,
     .optimizer = Tier::host,
     .offload_ratio = 0.5},
    {.name = "a third of the optimizer on nvme, small sub-groups, tiny budgets",
     .device_kib = 0,
     .host_kib = 0,
     .param = Tier::nvme,
     .optimizer = Tier::nvme,
     .nvme_activations = true,
     .sub_group = 65536,
     .offload_ratio = 1.0 / 3},
    {"nvme without a device tier", {}, 8192, Tier::nvme, Tier::nvme, false, true},
    {"tiny host without a device tier", {}, 0, Tier::nvme, Tier::nvme, false, true},
};

const Variant& variant_named(std::string_view name) {
  return *std::find_if(std::begin(kVariants), std::end(kVariants),
                       [&](const Variant& variant) { return variant.name == name; });
}

/// Budgets of 0 stand for the smallest that work; the engine's refusals tell what they are.
engine::EngineOptions options_of(const Variant& variant, const test::CurveSettings& settings,
                                 DType moments = DType::f32) {
  engine::EngineOptions options;
  options.memory.host_memory = kKiB * variant.host_kib;
  if (variant.device_kib) {
    options.memory.device_memory = kKiB * *variant.device_kib;
  }
  options.memory.offload_param = variant.param;
  options.memory.offload_optimizer = variant.optimizer;
  options.memory.host_activations = variant.host_activations;
  options.memory.nvme_activations = variant.nvme_activations;
  options.memory.sub_group_size = Elements(variant.sub_group);
  options.memory.state.moment_dtype = moments;
  options.memory.state.split_master = variant.split_master;
  options.memory.accumulation_order = variant.order;
  options.memory.recompute = variant.recompute;
  options.memory.offload_ratio = variant.offload_ratio;
  options.policy = variant.policy;
  options.io.backend = variant.backend;
  options.vocab_tile = 128;
  options.pin_memory = false;
  if (variant.host_kib == 0) {
    const engine::MinimumBudgets minimum = least_budgets(settings, options);
    options.memory.host_memory = minimum.host;
    if (variant.device_kib) {
      options.memory.device_memory = minimum.device;
    }
  }
  return options;
}

using CurveCase = std::tuple<DType, int64_t, bool>;  ///< dtype, micro-batches, tied

class Placement : public testing::TestWithParam<CurveCase> {
 protected:
  static void expect_same_bits(const CurveCase& each);
};

void Placement::expect_same_bits(const CurveCase& each) {
  const test::TemporaryFolder folder;
  const auto [dtype, micro_batches, tied] = each;
  model::ModelConfig config = test::small_model(kLayers);
  config.tie_word_embeddings = tied;
  model::init_model(config, DType::f32, 3, folder.path());
  const test::CurveSettings settings = random_curve(folder.path(), dtype, micro_batches);
  std::optional<test::Curve> reference;
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const test::Curve curve = train_curve(settings, options_of(variant, settings));
    if (!reference) {
      reference = curve;
      EXPECT_LT(curve.losses.back(), 7);
      EXPECT_GT(curve.losses.back(), 4);
    }
    test::expect_same_bits(curve, *reference);
  }
}

TEST_P(Placement, ChangesNoBit) {
  expect_same_bits(GetParam());
}

/// Run with the label slow.
class PlacementSlow : public Placement {};
TEST_P(PlacementSlow, ChangesNoBit) {
  expect_same_bits(GetParam());
}

const CurveCase kSome[] = {{DType::f32, 1, false},
                           {DType::bf16, 3, false},
                           {DType::bf16, 1, true},
                           {DType::f16, 3, false}};
const CurveCase kOthers[] = {{DType::f32, 3, false},
                             {DType::bf16, 1, false},
                             {DType::bf16, 3, true},
                             {DType::f16, 1, false}};
INSTANTIATE_TEST_SUITE_P(Some, Placement, testing::ValuesIn(kSome));
INSTANTIATE_TEST_SUITE_P(Others, PlacementSlow, testing::ValuesIn(kOthers));

/// The other optimizers, and bf16 and 8-bit moments, stream through the tiers by the same code: the
/// widest placement and the tightest one agree.
TEST(Optimizers, PlacementChangesNoBit) {
  using engine::OptimizerKind;
  struct Case {
    const char* name;
    OptimizerKind kind;
    double momentum;
    DType dtype;
    DType moments;
  };
  const Case cases[] = {
      {"adagrad", OptimizerKind::adagrad, 0, DType::f32, DType::f32},
      {"lion", OptimizerKind::lion, 0, DType::bf16, DType::f32},
      {"lion, bf16 moment", OptimizerKind::lion, 0, DType::bf16, DType::bf16},
      {"sgd", OptimizerKind::sgd, 0, DType::f32, DType::f32},
      {"sgd, momentum", OptimizerKind::sgd, 0.9, DType::f16, DType::f32},
      {"adam, bf16 moments", OptimizerKind::adam, 0, DType::bf16, DType::bf16},
      {"adam, 8-bit moments", OptimizerKind::adam, 0, DType::bf16, DType::u8},
      {"adam in fp32, 8-bit moments", OptimizerKind::adam, 0, DType::f32, DType::u8},
      {"lion, 8-bit moment", OptimizerKind::lion, 0, DType::f16, DType::u8},
      {"sgd, 8-bit momentum", OptimizerKind::sgd, 0.9, DType::bf16, DType::u8},
  };
  const test::TemporaryFolder folder;
  model::init_model(test::small_model(kLayers), DType::f32, 3, folder.path());
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    test::CurveSettings settings = random_curve(folder.path(), each.dtype, 2);
    settings.optimizer = each.kind;
    settings.momentum = each.momentum;
    std::vector<test::Curve> curves;
    for (const char* name : {"all on the device", "tiny budgets", "nvme offload, whole master",
                             "layer-major, tiny budgets"}) {
      const Variant& variant = variant_named(name);
      engine::EngineOptions options = options_of(variant, settings, each.moments);
      curves.push_back(train_curve(settings, options));
      EXPECT_EQ(curves.back(), curves.front()) << name;
    }
    EXPECT_NE(curves[0].losses.front(), curves[0].losses.back());
  }
}

TEST(SkippedStep, LeavesEveryBitAsItWas) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const test::TemporaryFolder folder;
    model::init_model(test::small_model(kLayers), DType::f32, 3, folder.path());
    test::CurveSettings settings = random_curve(folder.path(), dtype, 2);
    test::CurveSettings overflowing = settings;
    overflowing.loss_scale = 1e45;  // infinite as a float: no gradient is finite
    settings.steps.resize(1);
    settings.learning_rates = {0.0};
    settings.weight_decay = 0;
    const Variant& variant = variant_named("nvme offload, activations on nvme");
    const auto options = options_of(variant, settings);
    const test::Curve untouched = train_curve(settings, options);
    const test::Curve skipped = train_curve(overflowing, options_of(variant, overflowing));
    EXPECT_TRUE(skipped.weights == untouched.weights);
    EXPECT_EQ(skipped.losses[0], untouched.losses[0]);
  }
}

}  // namespace
}  // namespace headrace
