// Blocks that are cut into tiles, because they do not fit as wholes: every number of tiles gives
// the same bits, and the curve of whole blocks up to rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "device/gpu.h"
#include "e2e/training_harness.h"
#include "engine/gpu_options.h"
#include "engine/run_plan.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace headrace {
namespace {

using engine::AccumulationOrder;
using model::Family;

constexpr int64_t kPiece = 32;
constexpr int64_t kIntermediate = 11 * kPiece + 9;
constexpr int64_t kVocabulary = 203;
constexpr double kNoClip = 1e6;
constexpr double kAlwaysClips = 1e-3;

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
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = {2, 16};
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

struct Variant {
  const char* name;
  std::optional<Budget> device;
  Budget host;
  std::optional<Tier> param = Tier::nvme;
  std::optional<Tier> optimizer = Tier::nvme;
  const char* policy = "optimal";
  std::optional<AccumulationOrder> order = {};
  bool overlap = true;
};

/// Room for weights and fresh gradient of a few more pieces.
Budget roomy(DType dtype) {
  return {true, bytes_for(Elements(3 * kPiece * 64), dtype) * 2 * 4};
}

std::vector<Variant> cut_variants(DType dtype) {
  return {
      {"least device and host", kLeast, kLeast},
      {"least device, lru", kLeast, kLeast, Tier::nvme, Tier::nvme, "lru"},
      {"least device, liveness", kLeast, kPlenty, Tier::nvme, Tier::nvme, "liveness"},
      {"larger tiles", roomy(dtype), kPlenty},
      {"larger tiles, no overlap",
       roomy(dtype),
       kPlenty,
       Tier::nvme,
       Tier::nvme,
       "optimal",
       {},
       false},
      {"offload to the host", kLeast, kPlenty, Tier::host, Tier::host},
      {"layer-major", kLeast, kPlenty, Tier::nvme, Tier::nvme, "optimal",
       AccumulationOrder::layer_major},
      {"micro-batch-major", kLeast, kPlenty, Tier::nvme, Tier::nvme, "optimal",
       AccumulationOrder::micro_batch_major},
      {"least host without a device tier", {}, kLeast},
  };
}

const Variant kWholeBlocks{"whole blocks", {}, kPlenty, {}, {}};

/// Also says how many tiles the plan has.
engine::EngineOptions options_of(const Variant& variant, const test::CurveSettings& settings,
                                 int64_t& mlp_tiles) {
  engine::EngineOptions options;
  options.dtype = settings.dtype;
  options.shape = settings.shape;
  options.vocab_tile = 64;
  options.block_piece = kPiece;
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
  const model::CheckpointReader reader(settings.model_folder);
  const auto device = device::make_cpu_device();
  const model::Network network(reader.config(), settings.dtype, settings.shape, *device,
                               options.vocab_tile, kPiece);
  const auto least = engine::minimum_budgets(reader.config(), settings.dtype, settings.shape,
                                             engine::network_needs(network), memory);
  if (variant.host.is_least) {
    memory.host_memory += least.host;
  }
  if (variant.device && variant.device->is_least) {
    *memory.device_memory += least.device;
  }
  mlp_tiles = engine::plan_memory(network, options).layout.mlp_tiles;
  return options;
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
  int64_t tiles = 0;
  const test::Curve whole = train_curve(settings, options_of(kWholeBlocks, settings, tiles));
  EXPECT_EQ(tiles, 0);
  EXPECT_NE(whole.losses.front(), whole.losses.back());
  std::optional<test::Curve> first;
  std::set<int64_t> seen;
  for (const Variant& variant : cut_variants(each.dtype)) {
    SCOPED_TRACE(variant.name);
    const test::Curve curve = train_curve(settings, options_of(variant, settings, tiles));
    seen.insert(tiles);
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

engine::EngineOptions with_device(const test::CurveSettings& settings, Bytes device) {
  engine::EngineOptions options;
  options.dtype = settings.dtype;
  options.shape = settings.shape;
  options.pin_memory = false;
  options.block_piece = 128;
  options.memory.device_memory = device;
  options.memory.host_memory = kMiB * 96;
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  options.memory.has_nvme = true;
  options.memory.nvme_budget = kGiB;
  return options;
}

/// On the fake GPU, whose products may add otherwise than the CPU's.
TEST(BlockTilesOnGpu, GiveOneCurveOfTheirOwnToo) {
  const test::TemporaryFolder folder;
  model::init_model(deep_model(Family::qwen3), DType::f32, 3, folder.path());
  const auto settings = curve_settings(folder.path(), DType::bf16, 2, true);
  int64_t tiles = 0;
  const test::Curve whole = train_curve(settings, options_of(kWholeBlocks, settings, tiles));
  std::optional<test::Curve> first;
  std::set<int64_t> seen;
  // Room for all of an MLP as one tile, with its gradient, where there was a piece.
  const Bytes one_tile =
      bytes_for(Elements(3 * 64) * (kIntermediate - kPiece), settings.dtype) * 2 + kKiB * 16;
  for (const Bytes more : {Bytes(0), one_tile}) {
    const auto fake = std::make_shared<device::testing::FakeCuda>();
    device::GpuFound found;
    found.description = "the fake GPU";
    found.make_device = [fake](const device::GpuOptions&) {
      return std::make_unique<device::cuda::CudaDevice>(fake, 0);
    };
    engine::EngineOptions options = with_device(settings, kGiB);
    options.block_piece = kPiece;
    engine::use_gpu(options, found, {});
    const auto device = found.make_device({});
    const model::CheckpointReader reader(folder.path());
    const model::Network network(reader.config(), settings.dtype, settings.shape, *device,
                                 options.vocab_tile, kPiece);
    options.memory.micro_batches = 2;
    const auto least = engine::minimum_budgets(reader.config(), settings.dtype, settings.shape,
                                               engine::network_needs(network), options.memory);
    options.memory.device_memory = least.device + more;
    tiles = engine::plan_memory(network, options).layout.mlp_tiles;
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
  engine::EngineOptions in_memory = with_device(settings, kMiB * 256);
  in_memory.memory.offload_param.reset();
  in_memory.memory.offload_optimizer.reset();
  in_memory.memory.host_memory = kGiB;
  const test::Curve whole = train_curve(settings, in_memory);
  const auto device = device::make_cpu_device();
  engine::EngineOptions options = with_device(settings, kGiB);
  const model::Network network(config, settings.dtype, settings.shape, *device, options.vocab_tile,
                               options.block_piece);
  const auto minimum = engine::minimum_budgets(config, settings.dtype, settings.shape,
                                               engine::network_needs(network), options.memory);
  const Bytes block = bytes_for(model::module_specs(config)[1].count, DType::bf16);
  EXPECT_LT(minimum.device * 10, block * 2);
  options = with_device(settings, minimum.device);
  expect_near(train_curve(settings, options), whole, DType::bf16);
  options = with_device(settings, Bytes(minimum.device.count() - minimum.device.count() / 100));
  EXPECT_THROW(train_curve(settings, options), CapacityError);
}

}  // namespace
}  // namespace headrace
