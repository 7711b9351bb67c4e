// What a plan says beside what a run does: at the stated minimum budgets a run succeeds, below them
// it is refused, and it moves the bytes that were planned. Every family, placement and
// accumulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "base/error.h"
#include "e2e/training_harness.h"
#include "engine/planner/step_plan.h"

namespace headrace {
namespace {

using engine::PlanQuestion;
using model::Family;

/// Narrow blocks, a vocabulary that is no multiple of anything.
model::ModelConfig small_model(Family family) {
  model::ModelConfig config;
  config.family = family;
  config.vocab_size = 301;
  config.hidden_size = 64;
  config.intermediate_size = 160;
  config.layers = 4;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.max_positions = 64;
  config.attention_bias = family == Family::qwen2;
  config.qk_norm = family == Family::qwen3;
  config.tie_word_embeddings = family == Family::qwen3;
  return config;
}

struct PlacementCase {
  const char* name;
  bool has_device;
  std::optional<Tier> param;
  std::optional<Tier> optimizer;
  bool host_activations;
  bool nvme_activations;
};

const PlacementCase kPlacements[] = {
    {"all_on_device", true, {}, {}, false, false},
    {"all_in_host", false, {}, {}, false, false},
    {"optimizer_in_host", true, {}, Tier::host, false, false},
    {"cpu_offload", true, Tier::host, Tier::host, true, false},
    {"optimizer_on_nvme", true, Tier::host, Tier::nvme, true, false},
    {"nvme_offload", true, Tier::nvme, Tier::nvme, false, false},
    {"nvme_and_activations", true, Tier::nvme, Tier::nvme, false, true},
    {"nvme_without_device", false, Tier::nvme, Tier::nvme, false, true},
    {"weights_on_nvme", true, Tier::nvme, Tier::host, true, false},
};

PlanQuestion question_of(Family family, const PlacementCase& placement, int64_t micro_batches) {
  PlanQuestion question;
  question.config = small_model(family);
  engine::EngineOptions& options = question.options;
  options.dtype = DType::bf16;
  options.shape = {2, 32};
  options.vocab_tile = 128;
  options.pin_memory = false;
  engine::MemoryRequest& memory = options.memory;
  memory.host_memory = kMiB * 64;
  if (placement.has_device) {
    memory.device_memory = kMiB * 64;
  }
  memory.offload_param = placement.param;
  memory.offload_optimizer = placement.optimizer;
  memory.host_activations = placement.host_activations;
  memory.nvme_activations = placement.nvme_activations;
  memory.micro_batches = micro_batches;
  memory.has_nvme = true;
  memory.nvme_budget = options.nvme_budget = kGiB * 2;
  return question;
}

void set_disk(PlanQuestion& question, Bytes budget) {
  question.options.memory.nvme_budget = question.options.nvme_budget = budget;
}

PlanQuestion at_minimum(PlanQuestion question) {
  const engine::MinimumBudgets minimum = minimum_of(question);
  question.options.memory.host_memory = minimum.host;
  if (question.options.memory.device_memory) {
    question.options.memory.device_memory = minimum.device;
  }
  set_disk(question, minimum.nvme);
  return question;
}

test::CurveSettings curve_of(const std::string& folder, const PlanQuestion& question,
                             size_t steps) {
  test::CurveSettings settings;
  settings.model_folder = folder;
  settings.dtype = question.options.dtype;
  settings.shape = question.options.shape;
  settings.steps =
      test::random_steps(7, steps, question.options.memory.micro_batches, settings.shape, 301);
  settings.learning_rates.assign(steps, 1e-3);
  return settings;
}

class PlanBoundary : public testing::TestWithParam<std::tuple<Family, PlacementCase, int64_t>> {
 protected:
  void SetUp() override {
    const auto& [family, placement, micro_batches] = GetParam();
    question_ = question_of(family, placement, micro_batches);
    model::init_model(question_.config, DType::f32, 3, folder_.path());
  }

  /// The budget of one tier a hundredth lower.
  static PlanQuestion lower(PlanQuestion question, Tier tier) {
    const auto less = [](Bytes budget) { return Bytes(budget.count() - budget.count() / 100); };
    engine::MemoryRequest& memory = question.options.memory;
    if (tier == Tier::nvme) {
      set_disk(question, less(memory.nvme_budget));
    } else {
      Bytes& budget = tier == Tier::host ? memory.host_memory : *memory.device_memory;
      budget = less(budget);
    }
    return question;
  }

  void expect_refused(const PlanQuestion& question, Tier tier) {
    try {
      train_curve(curve_of(folder_.path(), question, 1), question.options);
      ADD_FAILURE() << "ran below the minimum of " << to_string(tier);
    } catch (const CapacityError& error) {
      EXPECT_NE(std::string(error.what()).find(to_string(tier)), std::string::npos) << error.what();
    }
    EXPECT_THROW(plan_step(question, engine::PlanDepth::quick), CapacityError);
  }

  test::TemporaryFolder folder_;
  PlanQuestion question_;
};

class PlannedBytes : public PlanBoundary {};

TEST_P(PlanBoundary, TheMinimumRunsAndLessIsRefused) {
  const PlanQuestion least = at_minimum(question_);
  const test::Curve curve = train_curve(curve_of(folder_.path(), least, 2), least.options);
  const test::Curve roomy = train_curve(curve_of(folder_.path(), question_, 2), question_.options);
  EXPECT_EQ(curve, roomy);
  EXPECT_NO_THROW(plan_step(least, engine::PlanDepth::full));
  expect_refused(lower(least, Tier::host), Tier::host);
  if (least.options.memory.device_memory) {
    expect_refused(lower(least, Tier::device), Tier::device);
  }
  if (least.options.memory.nvme_budget > Bytes(0)) {
    expect_refused(lower(least, Tier::nvme), Tier::nvme);
  }
}

/// With room in the host for all that a step makes, less of the disk is needed.
TEST_P(PlanBoundary, TheDiskNeedsNoRoomForWhatTheHostHolds) {
  if (minimum_of(question_).nvme == Bytes(0)) {
    GTEST_SKIP() << "nothing of this placement is on nvme";
  }
  PlanQuestion roomy = question_;
  const Bytes needed = plan_step(roomy, engine::PlanDepth::full).minimum.nvme;
  const engine::MemoryRequest& memory = question_.options.memory;
  const bool spills = memory.offload_optimizer == Tier::nvme || memory.nvme_activations;
  EXPECT_EQ(needed < minimum_of(question_).nvme, spills);
  const test::Curve curve = train_curve(curve_of(folder_.path(), roomy, 2), roomy.options);
  set_disk(roomy, needed);
  EXPECT_EQ(train_curve(curve_of(folder_.path(), roomy, 2), roomy.options), curve);
  expect_refused(lower(roomy, Tier::nvme), Tier::nvme);
}

/// Which bytes move does not depend on measured rates with this policy: a run's fourth step moves
/// what the plan, made before the run, says of the fourth.
TEST_P(PlannedBytes, AreThoseOfTheRun) {
  PlanQuestion question = question_;
  engine::EngineOptions& options = question.options;
  const engine::MinimumBudgets minimum = minimum_of(question);
  options.memory.host_memory = minimum.host + minimum.host / 4;
  if (options.memory.device_memory) {
    options.memory.device_memory = minimum.device + minimum.device / 4;
  }
  options.memory.optimizer_overlap = false;
  options.policy = "lru";
  const engine::StepPlan plan = plan_step(question, engine::PlanDepth::full);
  engine::EngineReport last;
  test::CurveSettings settings = curve_of(folder_.path(), question, 4);
  settings.observe = [&](const engine::EngineReport& report) { last = report; };
  train_curve(settings, options);
  EXPECT_EQ(plan.traffic.nvme_read.count(), last.traffic.nvme_read);
  EXPECT_EQ(plan.traffic.nvme_write.count(), last.traffic.nvme_write);
  EXPECT_EQ(plan.traffic.host_to_device.count(), last.traffic.host_to_device);
  EXPECT_EQ(plan.traffic.device_to_host.count(), last.traffic.device_to_host);
  EXPECT_LE(plan.peak_host, options.memory.host_memory);
  EXPECT_LE(plan.peak_device, options.memory.device_memory.value_or(Bytes(0)));
  EXPECT_GE(plan.seconds * (1 + 1e-9), plan.bound_seconds);
}

std::string name_of(
    const testing::TestParamInfo<std::tuple<Family, PlacementCase, int64_t>>& info) {
  const char* const families[] = {"llama", "mistral", "qwen2", "qwen3"};
  const auto& [family, placement, micro_batches] = info.param;
  return std::string(families[static_cast<size_t>(family)]) + "_" + placement.name + "_x" +
         std::to_string(micro_batches);
}

INSTANTIATE_TEST_SUITE_P(All, PlanBoundary,
                         testing::Combine(testing::Values(Family::llama, Family::mistral,
                                                          Family::qwen2, Family::qwen3),
                                          testing::ValuesIn(kPlacements), testing::Values(1, 2)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, PlannedBytes,
                         testing::Combine(testing::Values(Family::llama, Family::qwen3),
                                          testing::ValuesIn(kPlacements), testing::Values(1, 2)),
                         name_of);

}  // namespace
}  // namespace headrace
