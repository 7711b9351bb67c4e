// The steps of a real model's plan, announced operation by operation in the plan's own budgets.
#include <gtest/gtest.h>

#include "tests/engine/announced_steps.h"
#include "tests/engine/plan_models.h"

namespace headrace::engine {
namespace {

struct Case {
  const char* name;
  std::optional<Tier> param;
  std::optional<Tier> optimizer;
  bool nvme_activations;
};

class AnnouncedPlan : public testing::TestWithParam<Case> {
 protected:
  static MemoryPlan small_plan() {
    model::ModelConfig config = test::small_model(false);
    config.vocab_size = 200;
    config.hidden_size = 64;
    config.intermediate_size = 128;
    config.head_dim = 16;
    config.layers = 3;
    const Case& setting = GetParam();
    MemoryRequest request =
        test::request_of(setting.param, setting.optimizer, setting.nvme_activations);
    const MemoryPlan roomy = test::plan(config, DType::bf16, request);
    request.device_memory = roomy.minimum_device + roomy.minimum_device / 4;
    request.host_memory = roomy.minimum_host + roomy.minimum_host / 4;
    return test::plan(config, DType::bf16, request);
  }
};

TEST_P(AnnouncedPlan, StepsRunAheadAndTakeTurns) {
  const MemoryPlan plan = small_plan();
  const scheduler::CompileInput input =
      compile_input(plan, plan.training, scheduler::Rates(), plan.homes);
  test::AnnouncedSteps steps(plan.layout.objects, input.budgets, plan.homes,
                             test::io_engine(aio::BackendKind::io_uring));
  const test::Operations& training = plan.usual_step().trace.operations;
  const test::Operations& evaluation = plan.evaluation.trace.operations;
  steps.run(plan.load.trace.operations);
  EXPECT_EQ(steps.run(training).on_demand, training.size());
  for (int n = 0; n < 2; ++n) {
    const AnnouncedReport report = steps.run(training);
    EXPECT_EQ(report.on_demand, 0U);
    EXPECT_EQ(report.deviations, 0U);
    EXPECT_EQ(report.demand_fetches, 0U);
  }
  steps.run(evaluation);
  for (const test::Operations* step : {&training, &evaluation, &training, &training}) {
    const AnnouncedReport report = steps.run(*step);
    EXPECT_EQ(report.on_demand, 0U);
    EXPECT_LE(report.deviations, 1U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnnouncedPlan,
                         testing::Values(Case{"nvme", Tier::nvme, Tier::nvme, false},
                                         Case{"activations", Tier::nvme, Tier::nvme, true},
                                         Case{"host", Tier::host, Tier::host, false},
                                         Case{"device", std::nullopt, std::nullopt, false}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace headrace::engine
