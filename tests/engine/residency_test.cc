// Memory that is larger than needed is used: what fits stays where it is from step to step, so that
// only new values and gradients move.
#include <gtest/gtest.h>

#include "engine/memory_plan.h"
#include "engine/run_plan.h"
#include "tests/engine/plan_models.h"

namespace headrace::engine {
namespace {

constexpr model::BatchShape kShape{1, 64};

model::ModelConfig model_of_blocks() {
  model::ModelConfig config = test::small_model(false);
  config.vocab_size = 512;
  config.layers = 6;
  return config;
}

struct Case {
  std::optional<Tier> param;
  std::optional<Tier> optimizer;
  double ratio = 1;
};

/// The schedule of the fifth step in a row, with room for everything on device and host.
struct SteadyStep {
  MemoryPlan plan;
  scheduler::Schedule schedule;

  explicit SteadyStep(const Case& setting) {
    MemoryRequest request;
    request.device_memory = kGiB;
    request.host_memory = kGiB;
    request.has_nvme = true;
    request.nvme_budget = kGiB;
    request.offload_param = setting.param;
    request.offload_optimizer = setting.optimizer;
    request.offload_ratio = setting.ratio;
    plan = make_memory_plan(model_of_blocks(), DType::bf16, kShape, {kMiB, kKiB * 16},
                            WorkEstimate(), request);
    const auto policy = scheduler::make_optimal_policy();
    schedule.final = plan.homes;
    const auto run = [&](const StepTrace& trace) {
      schedule = policy->compile(compile_input(plan, trace, request.rates, schedule.final));
    };
    run(plan.load);
    for (int step = 0; step < 5; ++step) {
      run(plan.usual_step());
    }
  }

  Bytes weights() const { return state_bytes(plan.layout).weights; }
  Bytes state() const { return state_bytes(plan.layout).optimizer; }
  Bytes gradients() const { return state_bytes(plan.layout).gradients; }
  /// Objects of one alignment unit that order operations.
  static Bytes slack() { return kKiB * 64; }
};

TEST(Residency, WithEverythingOnTheDeviceNothingMoves) {
  for (const Case& setting : {Case{{}, {}}, Case{{}, Tier::host, 0}, Case{{}, Tier::nvme, 0}}) {
    const SteadyStep step(setting);
    const scheduler::Schedule& s = step.schedule;
    EXPECT_LE(s.host_to_device + s.device_to_host, SteadyStep::slack());
    EXPECT_EQ(s.nvme_read + s.nvme_write, Bytes(0));
  }
}

/// An optimizer on the host takes gradients and gives new weights, each once per step.
TEST(Residency, WeightsStayOnTheDeviceWhereTheyFit) {
  for (const auto& param : {std::optional<Tier>(), std::optional(Tier::host)}) {
    const SteadyStep step({param, Tier::host});
    EXPECT_LE(step.schedule.host_to_device, step.weights() + SteadyStep::slack());
    EXPECT_LE(step.schedule.device_to_host, step.gradients() + SteadyStep::slack());
    EXPECT_EQ(step.schedule.nvme_read + step.schedule.nvme_write, Bytes(0));
  }
}

/// Half of the optimizer on the device: half of those bytes.
TEST(Residency, TheRatioTakesItsShareOffTheLink) {
  const SteadyStep step({{}, Tier::host, 0.5});
  const auto half_of = [](Bytes bytes) { return bytes / 2 + kMiB / 2; };  // a module is one vector
  EXPECT_LE(step.schedule.host_to_device, half_of(step.weights()));
  EXPECT_LE(step.schedule.device_to_host, half_of(step.gradients()));
  EXPECT_GT(step.schedule.device_to_host, step.gradients() / 4);
}

/// New values go to nvme, for that is their home; nothing comes back from there.
TEST(Residency, WhatHasItsHomeOnNvmeStaysAbove) {
  const SteadyStep step({Tier::nvme, Tier::nvme});
  const scheduler::Schedule& s = step.schedule;
  EXPECT_EQ(s.nvme_read, Bytes(0));
  EXPECT_LE(s.nvme_write, step.weights() + step.state());
  EXPECT_LE(s.host_to_device, step.weights() + SteadyStep::slack());
  EXPECT_LE(s.device_to_host, step.gradients() + SteadyStep::slack());
}

}  // namespace
}  // namespace headrace::engine
