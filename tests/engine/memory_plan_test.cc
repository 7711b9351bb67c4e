#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "engine/vocabulary_tiles.h"
#include "model/presets.h"
#include "model/shapes.h"
#include "tests/engine/plan_models.h"

namespace headrace::engine {
namespace {

using test::kNeeds;
using test::kShape;
using test::plan;
using test::request_of;
using test::small_model;

std::vector<MemoryRequest> all_requests() {
  std::vector<MemoryRequest> requests;
  const std::optional<Tier> choices[] = {std::nullopt, Tier::host, Tier::nvme};
  for (const auto& param : choices) {
    for (const auto& optimizer : choices) {
      for (const bool has_device : {true, false}) {
        requests.push_back(request_of(param, optimizer, optimizer == Tier::nvme));
        if (!has_device) {
          requests.back().device_memory.reset();
        }
      }
    }
  }
  return requests;
}

TEST(MemoryPlan, TheStatedMinimumWorksAndLessIsRefused) {
  for (const bool tied : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (MemoryRequest request : all_requests()) {
        const auto config = small_model(tied);
        const MinimumBudgets minimum = minimum_budgets(config, dtype, kShape, kNeeds, request);
        request.host_memory = minimum.host;
        if (request.device_memory) {
          request.device_memory = minimum.device;
        }
        EXPECT_EQ(plan(config, dtype, request).minimum_host, minimum.host);
        MemoryRequest less = request;
        less.host_memory = minimum.host - Bytes(1);
        EXPECT_THROW(plan(config, dtype, less), CapacityError);
        if (request.device_memory) {
          less = request;
          less.device_memory = minimum.device - Bytes(1);
          EXPECT_THROW(plan(config, dtype, less), CapacityError);
        }
      }
    }
  }
}

constexpr int64_t kLogitsTile = 64;

/// A vocabulary that no small device holds as a whole: `small_model` with 5 units of tiles.
model::ModelConfig wide_model(bool tied) {
  model::ModelConfig config = small_model(tied);
  config.vocab_size = 4 * 512 + 100;
  config.intermediate_size = 32;  // a block is smaller than a tile
  return config;
}
const NetworkNeeds kWideNeeds{kMiB, kKiB * 16, kMiB, kLogitsTile};

TEST(MemoryPlan, VocabularyTilesAreWholeLogitsTilesAndStatisticsBlocks) {
  for (const int64_t hidden : {64, 96, 576, 1000, 4096}) {
    for (const int64_t tile : {16, 100, 4096}) {
      model::ModelConfig config = small_model(false);
      config.hidden_size = hidden;
      const int64_t unit = vocab_tile_unit(config, tile);
      int64_t expected = tile;
      while (expected * hidden % kStatisticsBlock.count() != 0) {
        expected += tile;
      }
      EXPECT_EQ(unit, expected) << hidden << " " << tile;
    }
  }
}

TEST(MemoryPlan, NoChoiceOfTilesGivesMoreThanThereMayBe) {
  model::ModelConfig config = small_model(false);
  config.hidden_size = 4096;  // 16 rows are a block of statistics
  for (const int64_t vocabulary : {15, 16, 17, 256 * 16, 256 * 16 + 1, 128 * 1024, 1 << 24}) {
    config.vocab_size = vocabulary;
    const std::vector<int64_t> choices = vocab_tile_choices(config, 16);
    EXPECT_EQ(choices.front(), 0);
    for (size_t i = 1; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i] % 16, 0);
      EXPECT_TRUE(i == 1 || choices[i] < choices[i - 1]);
      const int64_t tiles = (vocabulary + choices[i] - 1) / choices[i];
      EXPECT_GE(tiles, 2);
      EXPECT_LE(tiles, kMostVocabTiles);
    }
    EXPECT_EQ(choices.size() > 1, vocabulary > 16);
  }
  config.vocab_size = 256 * 16;
  EXPECT_EQ(vocab_tile_choices(config, 16).back(), 16) << "as many as there may be";
}

TEST(MemoryPlan, CutsTheVocabularyAsLittleAsTheBudgetsAllow) {
  for (const bool tied : {false, true}) {
    const auto config = wide_model(tied);
    MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
    const auto tiles_with = [&](Bytes device, Bytes host) {
      request.device_memory = device;
      request.host_memory = host;
      return make_memory_plan(config, DType::bf16, kShape, kWideNeeds, WorkEstimate(), request)
          .layout.vocab_tiles;
    };
    const MinimumBudgets least = minimum_budgets(config, DType::bf16, kShape, kWideNeeds, request);
    // A tile with its gradient.
    const Bytes unit = bytes_for(Elements(512) * config.hidden_size, DType::bf16) * 2;
    EXPECT_LT(least.device, kWideNeeds.workspace + unit * 4);
    std::vector<int64_t> tiles;
    for (int units = 1; units <= 5; ++units) {
      tiles.push_back(tiles_with(least.device + unit * (units - 1), kMiB * 64));
    }
    EXPECT_EQ(tiles.front(), 5);
    EXPECT_EQ(tiles.back(), 1);
    EXPECT_TRUE(std::is_sorted(tiles.rbegin(), tiles.rend()));
    EXPECT_EQ(tiles_with(kMiB * 64, kMiB * 64), 1);
  }
}

TEST(MemoryPlan, TilesKeepEveryElementOnce) {
  for (const bool tied : {false, true}) {
    LayoutOptions options;
    options.dtype = DType::bf16;
    options.shard_max = kStatisticsBlock;
    options.tokens = 128;
    options.micro_batches = 2;
    const auto elements_of = [&](int64_t tile_rows) {
      options.tile_rows = tile_rows;
      const ModelLayout layout = make_layout(wide_model(tied), options);
      EXPECT_EQ(layout.vocab_tiles, tile_rows == 0 ? 1 : 3);
      EXPECT_EQ(layout.softmax.size(), tile_rows == 0 ? 0U : 2U);
      EXPECT_EQ(layout.tied(), tied);
      EXPECT_EQ(layout.modules[layout.norm()].spec.name, "norm");
      EXPECT_EQ(layout.modules[layout.block(3)].spec.name, "block.3");
      std::map<std::string, std::set<int64_t>> blocks;
      for (const ModuleObjects& module : layout.modules) {
        const model::ParameterSpec& parameter = module.spec.parameters.front();
        for (const Shard& shard : module.shards) {
          EXPECT_TRUE(blocks[parameter.name]
                          .insert((parameter.first + shard.first) / kStatisticsBlock)
                          .second);
        }
      }
      return blocks;
    };
    EXPECT_EQ(elements_of(1024), elements_of(0));
  }
}

TEST(MemoryPlan, EverythingIsCountedAndNothingTwice) {
  const auto config = small_model(false);
  const MemoryPlan made = plan(config, DType::bf16, request_of(Tier::nvme, Tier::nvme, true));
  int64_t elements = 0;
  std::set<uint32_t> seen;
  for (const ModuleObjects& module : made.layout.modules) {
    elements += module.spec.count.count();
    EXPECT_TRUE(seen.insert(index_of(module.weights)).second);
    for (const ObjectId gradient : module.gradients) {
      EXPECT_TRUE(seen.insert(index_of(gradient)).second);
    }
    Elements next;
    for (const Shard& shard : module.shards) {
      EXPECT_EQ(shard.first, next);
      EXPECT_EQ(shard.first.count() % kStatisticsBlock.count(), 0);
      next = shard.first + shard.count;
      EXPECT_TRUE(seen.insert(index_of(shard.state)).second);
      EXPECT_TRUE(seen.insert(index_of(*shard.accumulator)).second);
      EXPECT_GE(made.layout.objects[index_of(shard.state)].size,
                bytes_for(shard.count, DType::f32) * 2 + bytes_for(shard.count, DType::u16));
    }
    EXPECT_EQ(next, module.spec.count);
  }
  const StateBytes state = state_bytes(made.layout);
  const int64_t slack = 4096 * static_cast<int64_t>(made.layout.objects.size());
  EXPECT_NEAR(static_cast<double>(state.weights.count()), static_cast<double>(2 * elements),
              static_cast<double>(slack));
  EXPECT_NEAR(static_cast<double>(state.optimizer.count()), static_cast<double>(10 * elements),
              static_cast<double>(slack));
  MemoryRequest whole_master = request_of(Tier::nvme, Tier::nvme, true);
  whole_master.state.split_master = false;
  const StateBytes larger = state_bytes(plan(config, DType::bf16, whole_master).layout);
  EXPECT_NEAR(static_cast<double>(larger.optimizer.count()), static_cast<double>(12 * elements),
              static_cast<double>(slack));
  EXPECT_NEAR(static_cast<double>(state.gradients.count()), static_cast<double>(2 * elements),
              static_cast<double>(slack));
  MemoryRequest sums = request_of(Tier::nvme, Tier::nvme, true);
  sums.fp32_gradients = true;
  EXPECT_NEAR(
      static_cast<double>(state_bytes(plan(config, DType::bf16, sums).layout).gradients.count()),
      static_cast<double>(4 * elements), static_cast<double>(slack));
  sums.fp32_gradients = false;
  sums.accumulation_order = AccumulationOrder::micro_batch_major;
  EXPECT_NEAR(
      static_cast<double>(state_bytes(plan(config, DType::bf16, sums).layout).gradients.count()),
      static_cast<double>(4 * elements), static_cast<double>(slack))
      << "rounded when the step's last micro-batch is over";
}

/// Per parameter the low half of the master and a byte for each moment, and a byte for each moment
/// of 64 parameters.
TEST(MemoryPlan, StateOf8BitMomentsTakesFourBytesAParameter) {
  const auto config = small_model(false);
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.state.moment_dtype = DType::u8;
  const MemoryPlan made = plan(config, DType::bf16, request);
  const auto in_lines = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  int64_t all = 0;
  int64_t elements = 0;
  for (const auto& module : made.layout.modules) {
    EXPECT_EQ(module.first.count(), elements);
    for (const Shard& shard : module.shards) {
      const int64_t n = shard.count.count();
      const int64_t arrays = in_lines(2 * n) + 2 * in_lines(n) + 2 * in_lines((n + 63) / 64);
      const int64_t size = (arrays + 4095) / 4096 * 4096;
      EXPECT_EQ(made.layout.objects[index_of(shard.state)].size.count(), size);
      all += size;
    }
    elements += module.spec.count.count();
  }
  EXPECT_EQ(state_bytes(made.layout).optimizer.count(), all);
  EXPECT_LT(static_cast<double>(all), 4.04 * static_cast<double>(elements) +
                                          4096.0 * static_cast<double>(made.layout.objects.size()));
}

/// The kernels of the device know moments as numbers only.
TEST(MemoryPlan, EightBitMomentsLiveWhereTheCpuUpdatesThem) {
  const auto config = small_model(false);
  for (const std::optional<Tier> offload : {std::optional<Tier>(), std::optional(Tier::host)}) {
    MemoryRequest request = request_of(std::nullopt, offload, false);
    request.offload_ratio = 0.5;
    const auto on_device = [&] {
      return state_bytes(plan(config, DType::bf16, request).layout).optimizer_on_device;
    };
    EXPECT_GT(on_device(), Bytes(0));
    request.state.moment_dtype = DType::u8;
    EXPECT_EQ(on_device(), Bytes(0));
    EXPECT_EQ(plan(config, DType::bf16, request).layout.placement.optimizer, Tier::host);
    request.offload_ratio.reset();
    EXPECT_EQ(on_device(), Bytes(0));
  }
}

/// A ratio that has no effect leaves all of the state on nvme.
TEST(MemoryPlan, EightBitMomentsAreOverwrittenWhateverTheRatio) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.wants_in_place = true;
  request.offload_ratio = 0.5;
  EXPECT_FALSE(request.in_place());
  request.state.moment_dtype = DType::u8;
  EXPECT_TRUE(request.in_place());
}

TEST(MemoryPlan, OneGradientPerStepIsNotSummed) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.micro_batches = 1;
  for (const bool tied : {false, true}) {
    const MemoryPlan made = plan(small_model(tied), DType::bf16, request);
    int64_t expected = 0;
    for (size_t i = 0; i < made.layout.modules.size(); ++i) {
      const ModuleObjects& module = made.layout.modules[i];
      const bool sums = tied && i == made.layout.embed();  // the head's gradient and its own
      EXPECT_EQ(module.shards.front().accumulator.has_value(), sums) << module.spec.name;
      expected += module.spec.count.count() * 2;
    }
    EXPECT_NEAR(static_cast<double>(state_bytes(made.layout).gradients.count()),
                static_cast<double>(expected),
                4096.0 * static_cast<double>(made.layout.objects.size()));
  }
}

TEST(MemoryPlan, LayerMajorKeepsTheActivationsOfAllMicroBatches) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.micro_batches = 4;
  request.accumulation_order = AccumulationOrder::layer_major;
  const MemoryPlan layer_major = plan(small_model(false), DType::bf16, request);
  request.accumulation_order = AccumulationOrder::micro_batch_major;
  const MemoryPlan micro_batch_major = plan(small_model(false), DType::bf16, request);
  EXPECT_EQ(state_bytes(layer_major.layout).activations,
            state_bytes(micro_batch_major.layout).activations * 4);
}

/// Each use of the weights by forward or backward, over the trace: runs of one module are one
/// visit.
int64_t weight_visits(const MemoryPlan& made) {
  int64_t visits = 0;
  std::optional<size_t> last;
  for (const StepOperation& step : made.training.operations) {
    const bool computes = step.kind < StepKind::accumulate;
    if (computes && step.module != last) {
      ++visits;
      last = step.module;
    }
  }
  return visits;
}

TEST(MemoryPlan, LayerMajorVisitsWeightsTwicePerStep) {
  const auto config = small_model(false);  // embed, 4 blocks, head
  for (const int64_t micro_batches : {1, 3}) {
    MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
    request.micro_batches = micro_batches;
    request.accumulation_order = AccumulationOrder::layer_major;
    EXPECT_EQ(weight_visits(plan(config, DType::bf16, request)), 11);
    request.accumulation_order = AccumulationOrder::micro_batch_major;
    EXPECT_EQ(weight_visits(plan(config, DType::bf16, request)), 10 * micro_batches + 1);
  }
}

/// The automatic choice takes what fits: activations of one micro-batch where memory holds no more.
TEST(MemoryPlan, AutomaticOrderFallsBackToWhatFits) {
  MemoryRequest request = request_of(Tier::host, Tier::host, false);
  request.micro_batches = 16;
  const auto config = small_model(false);
  const MinimumBudgets minimum = minimum_budgets(config, DType::bf16, kShape, kNeeds, request);
  request.device_memory = minimum.device;
  EXPECT_EQ(plan(config, DType::bf16, request).layout.order, AccumulationOrder::micro_batch_major);
  request.accumulation_order = AccumulationOrder::layer_major;
  EXPECT_THROW(plan(config, DType::bf16, request), CapacityError);
  request.accumulation_order.reset();
  request.device_memory = kMiB * 64;
  request.offload_param = Tier::nvme;
  EXPECT_EQ(plan(config, DType::bf16, request).layout.order, AccumulationOrder::layer_major);
}

/// Alignment of slots and arrays is all that the arenas hold beyond the values.
TEST(MemoryPlan, OverheadOfTheArenasIsBelowTwoPercent) {
  for (const std::string& name :
       {std::string("tiny"), std::string("smol"), std::string("qwen3-0.6b")}) {
    const model::ModelConfig config = model::preset_config(name);
    LayoutOptions options;
    options.dtype = DType::bf16;
    options.shard_max = Elements(1 << 20);
    options.tokens = 512;
    const StateBytes state = state_bytes(make_layout(config, options));
    int64_t values = 0;
    for (const model::ModuleSpec& module : model::module_specs(config)) {
      for (const model::ParameterSpec& parameter : module.parameters) {
        values += parameter.count.count();
      }
    }
    const auto planned = static_cast<double>((state.weights + state.optimizer).count());
    EXPECT_LE(planned, 1.02 * 12 * static_cast<double>(values)) << name;
  }
}

TEST(MemoryPlan, SubGroupSizeIsHonored) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.host_memory = kGiB;
  request.sub_group_size = Elements(100'000);
  for (const ModuleObjects& module : plan(small_model(false), DType::f32, request).layout.modules) {
    for (const Shard& shard : module.shards) {
      EXPECT_LE(shard.count.count(), 100'000);
    }
  }
}

/// At the smallest budgets shards are as small as they get; a plan of millions would take long.
TEST(MemoryPlan, LargeModelsHaveABoundedNumberOfShards) {
  const model::ModelConfig config = model::shape_config("dense-40b");
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.nvme_budget = kGiB * 2000;
  request.micro_batches = 1;  // one order only, so that none has to be compiled
  request.optimizer_overlap = false;
  const MinimumBudgets minimum = minimum_budgets(config, DType::bf16, kShape, kNeeds, request);
  request.device_memory = minimum.device;
  request.host_memory = minimum.host;
  const auto shards = [&] {
    size_t count = 0;
    for (const ModuleObjects& module : plan(config, DType::bf16, request).layout.modules) {
      count += module.shards.size();
    }
    return count;
  };
  EXPECT_LE(shards(), 16384U + 55U) << "one more in each of the modules";
  request.sub_group_size = Elements(2'000'000);
  EXPECT_GT(shards(), 39'796'416'512U / 2'000'000U) << "what is asked for is done";
}

TEST(MemoryPlan, NvmeWithoutAPathNamesTheSettings) {
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  request.has_nvme = false;
  try {
    plan(small_model(false), DType::f32, request);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("--nvme-path"), std::string::npos);
  }
}

/// Two generations of what lives on nvme, and what a small host has no room for inside a step.
TEST(MemoryPlan, DiskThatCannotHoldWhatGoesThereIsRefused) {
  const model::ModelConfig config = small_model(false);
  MemoryRequest request = request_of(Tier::nvme, Tier::nvme, true);
  const auto sum = [](const MemoryPlan& made, bool for_good) {
    Bytes bytes;
    for (const auto& object : made.layout.objects) {
      const bool counts =
          for_good ? object.home == Tier::nvme : !object.home && object.floor == Tier::nvme;
      bytes += counts ? object.size : Bytes(0);
    }
    return bytes;
  };
  const auto plan_at_least = [&] {
    request.nvme_budget = kGiB;
    request.nvme_budget = plan(config, DType::f32, request).minimum_nvme;
    const MemoryPlan made = plan(config, DType::f32, request);
    EXPECT_EQ(made.minimum_nvme, request.nvme_budget);
    EXPECT_EQ(sum(made, true) * 2 + sum(made, false), request.nvme_budget);
    request.nvme_budget = request.nvme_budget - Bytes(1);
    EXPECT_THROW(plan(config, DType::f32, request), CapacityError);
    return made;
  };
  EXPECT_EQ(sum(plan_at_least(), false), Bytes(0));
  request.host_memory = minimum_budgets(config, DType::f32, kShape, kNeeds, request).host;
  EXPECT_GT(sum(plan_at_least(), false), Bytes(0));
}

}  // namespace
}  // namespace headrace::engine
