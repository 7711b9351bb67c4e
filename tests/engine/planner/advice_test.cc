#include "engine/planner/advice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "engine/recompute_choice.h"
#include "model/network.h"
#include "model/presets.h"

namespace headrace::engine {
namespace {

/// Three tiers, a slow drive.
PlanQuestion small_question() {
  PlanQuestion question;
  question.config = model::preset_config("tiny");
  EngineOptions& options = question.options;
  options.dtype = DType::bf16;
  options.shape = {1, 64};
  options.memory.device_memory = kMiB * 12;
  options.memory.host_memory = kMiB * 16;
  options.memory.has_nvme = true;
  options.memory.nvme_budget = options.nvme_budget = kGiB;
  options.memory.nvme_path = "(none)";
  options.memory.offload_param = Tier::nvme;
  options.memory.offload_optimizer = Tier::nvme;
  options.memory.host_activations = true;
  options.memory.rates.nvme_read = options.memory.rates.nvme_write = 5e8;
  return question;
}

const Suggestion* find(const std::vector<Suggestion>& suggestions, const std::string& change) {
  const auto found = std::find_if(suggestions.begin(), suggestions.end(), [&](const auto& each) {
    return each.change.find(change) != std::string::npos;
  });
  return found == suggestions.end() ? nullptr : &*found;
}

TEST(StepPlan, LanesBoundAndPredictionAgree) {
  const StepPlan plan = plan_step(small_question(), PlanDepth::full);
  EXPECT_EQ(plan.tokens, 64);
  EXPECT_LE(plan.bound_seconds, plan.seconds);
  for (const double busy : plan.busy) {
    EXPECT_LE(busy, plan.seconds * (1 + 1e-9));
  }
  using scheduler::Lane;
  const double read = static_cast<double>(plan.traffic.nvme_read.count()) / 5e8;
  EXPECT_NEAR(plan.busy[static_cast<size_t>(Lane::nvme_read)], read, 0.01 * read);
  EXPECT_EQ(plan.binding(), Lane::nvme_read);
}

TEST(StepPlan, SeveralAtOnceAreTheSameAsOneByOne) {
  std::vector<PlanQuestion> questions(5, small_question());
  for (size_t i = 0; i < questions.size(); ++i) {
    questions[i].options.memory.host_memory = kMiB * static_cast<int64_t>(1 + 8 * i);
  }
  const std::vector<PlanAnswer> answers = plan_all(questions, PlanDepth::quick);
  EXPECT_FALSE(answers[0].plan.has_value());
  EXPECT_NE(answers[0].refusal.find("host"), std::string::npos);
  for (size_t i = 1; i < questions.size(); ++i) {
    ASSERT_TRUE(answers[i].plan.has_value()) << answers[i].refusal;
    const StepPlan alone = plan_step(questions[i], PlanDepth::quick);
    EXPECT_EQ(answers[i].plan->seconds, alone.seconds);
    EXPECT_EQ(answers[i].plan->traffic.nvme_read, alone.traffic.nvme_read);
  }
}

TEST(Advice, RecommendsTheSmallestBudgetNearTheBest) {
  PlanQuestion question = small_question();
  const Advice advice = advise(question, plan_step(question, PlanDepth::full), Hardware());
  ASSERT_TRUE(advice.host.has_value());
  ASSERT_TRUE(advice.device.has_value());
  const auto seconds_with = [&](Bytes budget) {
    question.options.memory.host_memory = budget;
    return plan_step(question, PlanDepth::quick).seconds;
  };
  EXPECT_EQ(seconds_with(advice.host->budget), advice.host->plan.seconds);
  EXPECT_LE(advice.host->plan.seconds, kNearEnough * advice.host->best_seconds);
  EXPECT_EQ(seconds_with(kGiB), advice.host->best_seconds) << "all the memory that it can use";
  EXPECT_GT(seconds_with(advice.host->budget * 2 / 3), kNearEnough * advice.host->best_seconds);
  question.options.memory.device_memory.reset();
  EXPECT_FALSE(advise(question, plan_step(question, PlanDepth::full), Hardware()).device);
}

TEST(Advice, AimsAtWhatBinds) {
  const PlanQuestion question = small_question();
  const auto suggestions =
      advise(question, plan_step(question, PlanDepth::full), Hardware()).suggestions;
  const Suggestion* const drive = find(suggestions, "second drive");
  ASSERT_NE(drive, nullptr);
  EXPECT_GT(drive->speedup, 1.5) << "the drive binds";
  EXPECT_NE(find(suggestions, "--host-memory"), nullptr);
  EXPECT_NE(find(suggestions, "--micro-batch"), nullptr);
  EXPECT_TRUE(std::is_sorted(suggestions.begin(), suggestions.end(),
                             [](const auto& a, const auto& b) { return a.speedup > b.speedup; }));
  const StepPlan quick = plan_step(question, PlanDepth::quick);
  for (const Suggestion& each : suggestions) {
    EXPECT_NEAR(each.plan.tokens_per_second() / quick.tokens_per_second(), each.speedup, 1e-9);
    EXPECT_GE(each.speedup, 1.03);
  }
}

TEST(Advice, LossySettingsAreOfferedAsSuch) {
  PlanQuestion question = small_question();
  const Suggestion* suggestion = nullptr;
  auto suggestions = advise(question, plan_step(question, PlanDepth::full), Hardware()).suggestions;
  ASSERT_NE(suggestion = find(suggestions, "lossy_8bit_moments: true (changes the numbers)"),
            nullptr);
  EXPECT_GT(suggestion->speedup, 1.2) << "the drive binds";
  EXPECT_EQ(find(suggestions, "lossy_fp8_forward"), nullptr) << "no card that has it";
  question.options.memory.state.moments = 1;  // may be Adagrad's
  suggestions = advise(question, plan_step(question, PlanDepth::full), Hardware()).suggestions;
  EXPECT_EQ(find(suggestions, "lossy_8bit_moments"), nullptr);
}

TEST(Advice, Fp8IsOfferedWhereTheCardHasItAndComputes) {
  PlanQuestion question = small_question();
  EngineOptions& options = question.options;
  options.memory.host_memory = options.memory.device_memory.emplace(kGiB);
  options.work = {1e9, 2e9, 10e9, 1e15};
  Hardware hardware;
  hardware.compute_fp8.per_second = 2e9;
  const StepPlan plan = plan_step(question, PlanDepth::full);
  const auto suggestions = advise(question, plan, hardware).suggestions;
  const Suggestion* const fp8 = find(suggestions, "lossy_fp8_forward: true (changes the numbers)");
  ASSERT_NE(fp8, nullptr);
  // By hand: with nothing computed again a third of the work in blocks takes half the time.
  ASSERT_EQ(count_levels(plan.recompute)[model::Recompute::none], question.config.layers);
  const auto device = device::make_cpu_device();
  const model::BlockFlops forward =
      model::Network(question.config, DType::bf16, options.shape, *device).block_forward_flops();
  const double saved =
      static_cast<double>(question.config.layers) * forward.linear_forward * (1 / 1e9 - 1 / 2e9);
  EXPECT_NEAR(plan.seconds - fp8->plan.seconds, saved, 0.01 * saved);
  options.shape = {1, 63};
  EXPECT_EQ(find(advise(question, plan_step(question, PlanDepth::full), hardware).suggestions,
                 "lossy_fp8_forward"),
            nullptr)
      << "63 tokens";
}

TEST(Advice, NothingForARunThatComputes) {
  PlanQuestion question = small_question();
  question.options.work.flops = 1e9;
  question.options.memory.host_memory = question.options.memory.device_memory.emplace(kGiB);
  const StepPlan plan = plan_step(question, PlanDepth::full);
  EXPECT_EQ(plan.binding(), scheduler::Lane::compute);
  EXPECT_TRUE(advise(question, plan, Hardware()).suggestions.empty());
}

TEST(Remedies, StateThatIsOverwrittenNeedsRoomForOneGeneration) {
  PlanQuestion question = small_question();
  question.options.memory.wants_in_place = true;
  const Bytes all_on_nvme = minimum_of(question).nvme;
  question.options.memory.wants_in_place = false;
  // The smallest plan has smaller shards than a roomy one: more gaps.
  const auto generation =
      static_cast<double>(plan_step(question, PlanDepth::quick).nvme_for_good.count());
  EXPECT_NEAR(static_cast<double>((minimum_of(question).nvme - all_on_nvme).count()), generation,
              0.02 * generation);
  // A change of a home decides anew whether values can be overwritten.
  question.options.memory.wants_in_place = true;
  question.options.memory.offload_param = Tier::host;
  EXPECT_FALSE(question.options.memory.in_place());
  question.options.memory.host_memory = kMiB;
  const std::vector<Remedy> remedies = find_remedies(question);
  const auto on_nvme = std::find_if(remedies.begin(), remedies.end(), [](const Remedy& each) {
    return each.change == "zero_optimization.offload_param.device: nvme";
  });
  ASSERT_NE(on_nvme, remedies.end());
  EXPECT_EQ(on_nvme->minimum.nvme, all_on_nvme);
}

TEST(Remedies, NameLessThatIsSavedForBackward) {
  PlanQuestion question = small_question();
  question.options.memory.recompute = model::Recompute::none;
  question.options.memory.device_memory = kMiB;
  const std::vector<Remedy> remedies = find_remedies(question);
  EXPECT_TRUE(std::any_of(remedies.begin(), remedies.end(), [](const Remedy& each) {
    return each.change == "headrace.recompute: block";
  }));
}

TEST(Remedies, SayWhatFits) {
  PlanQuestion question = small_question();
  question.options.memory.offload_param = Tier::host;
  question.options.memory.offload_optimizer = Tier::host;
  EXPECT_THROW(plan_step(question, PlanDepth::quick), CapacityError);
  const std::vector<Remedy> remedies = find_remedies(question);
  ASSERT_FALSE(remedies.empty());
  EXPECT_EQ(remedies.front().change, "zero_optimization.offload_optimizer.device: nvme");
  for (const Remedy& each : remedies) {
    PlanQuestion changed = question;
    if (each.change == "zero_optimization.offload_optimizer.device: nvme") {
      changed.options.memory.offload_optimizer = Tier::nvme;
    } else if (each.change == "offload_param.device and offload_optimizer.device: nvme") {
      changed.options.memory.offload_param = changed.options.memory.offload_optimizer = Tier::nvme;
    } else {
      continue;
    }
    EXPECT_EQ(plan_all({changed}, PlanDepth::quick)[0].plan.has_value(), each.fits) << each.change;
  }
}

}  // namespace
}  // namespace headrace::engine
