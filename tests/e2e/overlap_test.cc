// Updating during backward changes no bit: not where steps are clipped, skipped or neither, for any
// place of weights and masters.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "e2e/training_harness.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace headrace {
namespace {

using engine::Speculation;

constexpr int64_t kSeq = 32;
constexpr int64_t kSequences = 2;
constexpr double kNoClip = 1e6;
constexpr double kAlwaysClips = 1e-3;

model::ModelConfig small_model(bool tied) {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.vocab_size = 301;
  config.hidden_size = 96;
  config.intermediate_size = 200;
  config.layers = 4;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 24;
  config.max_positions = 64;
  config.tie_word_embeddings = tied;
  return config;
}

/// One of the eight steps of the run.
struct Step {
  double clip = kNoClip;
  bool overflows = false;
  Speculation expected = Speculation::none;  ///< where updates are speculative
};
const Step kSteps[] = {
    {kNoClip, false, Speculation::none},         // nothing is known about the norms yet
    {kNoClip, false, Speculation::none},         //
    {kNoClip, false, Speculation::held},         // two steps were not clipped
    {kAlwaysClips, false, Speculation::redone},  //
    {kNoClip, false, Speculation::none},         //
    {kNoClip, false, Speculation::none},         //
    {kNoClip, true, Speculation::redone},        // skipped
    {kNoClip, false, Speculation::none},
};

test::CurveSettings curve_settings(const std::string& folder, DType dtype, int64_t micro_batches) {
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = dtype;
  settings.shape = {kSequences, kSeq};
  settings.steps = test::random_steps(11, std::size(kSteps), micro_batches, settings.shape, 301);
  settings.learning_rates.assign(settings.steps.size(), 1e-3);
  settings.adjust = [dtype](size_t step, engine::StepNumbers& numbers) {
    numbers.gradient_clipping = kSteps[step].clip;
    numbers.loss_scale = dtype == DType::f16 ? 1024 : 1;
    if (kSteps[step].overflows) {
      numbers.loss_scale = 1e45;  // infinite as a float: no gradient is finite
    }
  };
  return settings;
}

struct Variant {
  const char* name;
  std::optional<int64_t> device_kib;
  std::optional<Tier> param;
  bool split_master = true;
  std::optional<engine::AccumulationOrder> order = {};
};
const Variant kVariants[] = {
    {"all on nvme", 8192, Tier::nvme},
    {"all on nvme, no device tier", {}, Tier::nvme},
    {"all on nvme, whole master", 8192, Tier::nvme, false},
    {"weights on the host", 8192, Tier::host},
    {"weights on the host, whole master", 8192, Tier::host, false},
    {"weights on the device", 16384, {}},
    {"micro-batch-major", 8192, Tier::nvme, true, engine::AccumulationOrder::micro_batch_major},
};

engine::EngineOptions options_of(const Variant& variant, bool overlap) {
  engine::EngineOptions options;
  options.memory.host_memory = kKiB * 24576;
  if (variant.device_kib) {
    options.memory.device_memory = kKiB * *variant.device_kib;
  }
  options.memory.offload_param = variant.param;
  options.memory.offload_optimizer = Tier::nvme;
  options.memory.has_nvme = true;
  options.memory.nvme_activations = true;
  options.memory.sub_group_size = Elements(131072);
  options.memory.state.split_master = variant.split_master;
  options.memory.accumulation_order = variant.order;
  options.memory.optimizer_overlap = overlap;
  options.vocab_tile = 128;
  options.pin_memory = false;
  return options;
}

class Overlap : public testing::TestWithParam<std::tuple<DType, int64_t, bool>> {};

TEST_P(Overlap, ChangesNoBit) {
  const test::TemporaryFolder folder;
  const auto [dtype, micro_batches, tied] = GetParam();
  model::init_model(small_model(tied), DType::f32, 3, folder.path());
  test::CurveSettings settings = curve_settings(folder.path(), dtype, micro_batches);
  const test::Curve reference = train_curve(settings, options_of(kVariants[0], false));
  std::vector<Speculation> expected;
  for (const Step& step : kSteps) {
    expected.push_back(step.expected);
  }
  std::vector<Speculation> seen;
  settings.observe = [&](const engine::EngineReport& report) {
    seen.push_back(report.speculation);
  };
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    seen.clear();
    const test::Curve curve = train_curve(settings, options_of(variant, true));
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(curve.losses, reference.losses);
    for (size_t i = 0; i < std::size(kSteps); ++i) {
      EXPECT_TRUE(kSteps[i].overflows || curve.gradient_norms[i] == reference.gradient_norms[i]);
    }
    EXPECT_TRUE(curve.weights == reference.weights);
  }
}

/// Rounding at random draws the same for an update that is done again.
TEST(Overlap8BitMoments, ChangesNoBit) {
  const test::TemporaryFolder folder;
  model::init_model(small_model(false), DType::f32, 3, folder.path());
  for (const int64_t micro_batches : {1, 3}) {
    test::CurveSettings settings = curve_settings(folder.path(), DType::bf16, micro_batches);
    const auto options = [](const Variant& variant, bool overlap) {
      engine::EngineOptions result = options_of(variant, overlap);
      result.memory.state.moment_dtype = DType::u8;
      return result;
    };
    const test::Curve reference = train_curve(settings, options(kVariants[0], false));
    int64_t redone = 0;
    settings.observe = [&](const engine::EngineReport& report) {
      redone += report.speculation == Speculation::redone ? 1 : 0;
    };
    for (const Variant& variant : {kVariants[0], kVariants[3], kVariants[4]}) {
      SCOPED_TRACE(variant.name);
      const test::Curve curve = train_curve(settings, options(variant, true));
      EXPECT_EQ(curve.losses, reference.losses);
      EXPECT_TRUE(curve.weights == reference.weights);
    }
    EXPECT_EQ(redone, 6);
  }
}

/// Without clipping the first step is updated during backward too.
TEST_P(Overlap, WithoutClippingASkippedStepIsTakenBack) {
  const test::TemporaryFolder folder;
  const auto [dtype, micro_batches, tied] = GetParam();
  model::init_model(small_model(tied), DType::f32, 3, folder.path());
  test::CurveSettings settings = curve_settings(folder.path(), dtype, micro_batches);
  settings.steps.resize(3);
  settings.adjust = [](size_t step, engine::StepNumbers& numbers) {
    numbers.gradient_clipping = 0;
    numbers.loss_scale = step == 1 ? 1e45 : 1;
  };
  const test::Curve reference = train_curve(settings, options_of(kVariants[0], false));
  std::vector<Speculation> seen;
  settings.observe = [&](const engine::EngineReport& report) {
    seen.push_back(report.speculation);
  };
  for (const Variant& variant : {kVariants[0], kVariants[3]}) {
    SCOPED_TRACE(variant.name);
    seen.clear();
    EXPECT_TRUE(train_curve(settings, options_of(variant, true)).weights == reference.weights);
    EXPECT_EQ(seen, (std::vector{Speculation::held, Speculation::redone, Speculation::none}));
  }
}

/// Without clipping and skipping nothing depends on the norm: the updates move into backward for
/// every place of the optimizer.
TEST_P(Overlap, WithoutANormToWaitForChangesNoBit) {
  const test::TemporaryFolder folder;
  const auto [dtype, micro_batches, tied] = GetParam();
  model::init_model(small_model(tied), DType::f32, 3, folder.path());
  test::CurveSettings settings = curve_settings(folder.path(), dtype, micro_batches);
  settings.adjust = {};
  settings.gradient_clipping = 0;
  settings.check_finite = false;
  settings.steps.resize(3);
  const Variant& variant = kVariants[0];
  const test::Curve reference = train_curve(settings, options_of(variant, false));
  for (const std::optional<Tier> optimizer :
       {std::optional(Tier::nvme), std::optional(Tier::host), std::optional<Tier>()}) {
    SCOPED_TRACE(optimizer ? to_string(*optimizer) : "device");
    engine::EngineOptions options = options_of(variant, true);
    options.memory.device_memory = kKiB * 32768;
    options.memory.offload_optimizer = optimizer;
    options.memory.updates_need_norm = false;
    EXPECT_EQ(train_curve(settings, options), reference);
  }
}

/// The timeline of a step holds all of its runs: the updates that were done again too, and the
/// commit.
TEST(OverlapTimeline, SumsAreTheStallBreakdownOfEveryStep) {
  const test::TemporaryFolder folder;
  model::init_model(small_model(false), DType::f32, 3, folder.path());
  test::CurveSettings settings = curve_settings(folder.path(), DType::bf16, 1);
  std::vector<size_t> updates;
  settings.observe_timeline = [&](const engine::EngineReport& report,
                                  const engine::StepTimeline& timeline) {
    SCOPED_TRACE(timeline.step);
    const engine::TimeSplit& expected = report.run.split;
    const engine::TimeSplit sums = timeline.split();
    for (const auto part :
         {&engine::TimeSplit::compute, &engine::TimeSplit::cpu_optimizer,
          &engine::TimeSplit::nvme_read, &engine::TimeSplit::nvme_write,
          &engine::TimeSplit::host_to_device, &engine::TimeSplit::device_to_host}) {
      EXPECT_NEAR(sums.*part, expected.*part, 1e-9);
    }
    EXPECT_NEAR(sums.total, timeline.seconds, 1e-9);
    EXPECT_GE(sums.other, expected.other - 1e-9);
    int64_t moved[scheduler::kLaneCount] = {};
    size_t operations = 0;
    for (const engine::StepTimeline::Event& event : timeline.events) {
      moved[static_cast<size_t>(event.lane)] += event.bytes.count();
      operations += event.name.find("update") != std::string::npos ? 1 : 0;
      EXPECT_LE(event.end, timeline.seconds);
    }
    updates.push_back(operations);
    const auto moved_in = [&](scheduler::Lane lane) { return moved[static_cast<size_t>(lane)]; };
    EXPECT_EQ(moved_in(scheduler::Lane::nvme_read), report.traffic.nvme_read);
    EXPECT_EQ(moved_in(scheduler::Lane::nvme_write), report.traffic.nvme_write);
    EXPECT_EQ(moved_in(scheduler::Lane::host_to_device), report.traffic.host_to_device);
    EXPECT_EQ(moved_in(scheduler::Lane::device_to_host), report.traffic.device_to_host);
    const auto commit =
        std::count_if(timeline.events.begin(), timeline.events.end(),
                      [](const engine::StepTimeline::Event& e) { return e.name == "commit"; });
    EXPECT_EQ(commit, 1);
  };
  train_curve(settings, options_of(kVariants[3], true));
  ASSERT_EQ(updates.size(), std::size(kSteps));
  for (size_t i = 0; i < updates.size(); ++i) {
    const bool is_redone = kSteps[i].expected == Speculation::redone;
    EXPECT_EQ(updates[i], updates[0] * (is_redone ? 2 : 1)) << i;
  }
}

/// Sums of gradients that stay in fp32, in every order and place.
TEST(Fp32Sums, PlacementChangesNoBit) {
  const test::TemporaryFolder folder;
  model::init_model(small_model(true), DType::f32, 3, folder.path());
  test::CurveSettings settings = curve_settings(folder.path(), DType::bf16, 3);
  settings.steps.resize(4);
  const auto options = [](const char* name, bool overlap, bool fp32) {
    const auto* variant =
        std::find_if(std::begin(kVariants), std::end(kVariants),
                     [&](const Variant& each) { return std::string_view(each.name) == name; });
    engine::EngineOptions result = options_of(*variant, overlap);
    result.memory.fp32_gradients = fp32;
    return result;
  };
  const test::Curve reference = train_curve(settings, options("all on nvme", false, true));
  for (const char* name : {"all on nvme", "all on nvme, no device tier", "micro-batch-major"}) {
    EXPECT_EQ(train_curve(settings, options(name, true, true)), reference) << name;
  }
  const test::Curve rounded = train_curve(settings, options("all on nvme", true, false));
  EXPECT_NE(rounded.weights, reference.weights);
  EXPECT_NEAR(rounded.losses.back(), reference.losses.back(), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(All, Overlap,
                         testing::Combine(testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(1, 3), testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(Tied, Overlap,
                         testing::Combine(testing::Values(DType::bf16), testing::Values(1, 3),
                                          testing::Values(true)));

/// Where the budget does not hold the gradients through backward, the updates come after it.
TEST(OverlapPlan, FallsBackWhereItDoesNotFit) {
  const test::TemporaryFolder folder;
  model::init_model(small_model(false), DType::f32, 3, folder.path());
  test::CurveSettings settings = curve_settings(folder.path(), DType::bf16, 1);
  const test::Curve reference = train_curve(settings, options_of(kVariants[0], false));
  const model::CheckpointReader reader(folder.path());
  const auto device = device::make_cpu_device();
  engine::EngineOptions options = options_of(kVariants[0], true);
  const model::Network network(reader.config(), settings.dtype, settings.shape, *device,
                               options.vocab_tile);
  const auto minimum = engine::minimum_budgets(reader.config(), settings.dtype, settings.shape,
                                               engine::network_needs(network), options.memory);
  options.memory.host_memory = minimum.host;
  options.memory.device_memory = minimum.device;
  settings.observe = [](const engine::EngineReport& report) {
    EXPECT_EQ(report.speculation, Speculation::none);
  };
  EXPECT_TRUE(train_curve(settings, options).weights == reference.weights);
}

}  // namespace
}  // namespace headrace
