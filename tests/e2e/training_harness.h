#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "model/checkpoint.h"
#include "model/token_data.h"
#include "support/temporary_folder.h"

namespace headrace::test {

/// A training curve as the engine sees it.
struct Curve {
  std::vector<double> losses;
  std::vector<double> gradient_norms;
  /// The packed weights of all modules as fp32, after the last step.
  std::vector<float> weights;
  bool operator==(const Curve&) const = default;
};

/// Everything of a run but where its bytes live.
struct CurveSettings {
  std::string model_folder;
  DType dtype = DType::f32;
  model::BatchShape shape;
  std::vector<std::vector<model::TokenBatch>> steps;  ///< [step][micro-batch]
  std::vector<double> learning_rates;                 ///< [step]
  double gradient_clipping = 1.0;
  double weight_decay = 0.01;
  engine::OptimizerKind optimizer = engine::OptimizerKind::adam;
  double momentum = 0;  ///< sgd
  double loss_scale = 1;
  bool check_finite = true;
  /// Where not empty: changes the numbers of a step before it.
  std::function<void(size_t step, engine::StepNumbers& numbers)> adjust;
  /// Where not empty: sees the report of every step.
  std::function<void(const engine::EngineReport& report)> observe;
  /// Where not empty: every step is recorded.
  std::function<void(const engine::EngineReport& report, const engine::StepTimeline& timeline)>
      observe_timeline;
};

/// Trains with the Engine; `options` brings placement, budgets, policy and I/O backend, the rest is
/// filled in.
Curve train_curve(const CurveSettings& settings, engine::EngineOptions options);

/// The smallest budgets that train_curve() runs with, and its plan.
engine::MinimumBudgets least_budgets(const CurveSettings& settings, engine::EngineOptions options);
engine::MemoryPlan plan_of(const CurveSettings& settings, engine::EngineOptions options);

/// Batches of a token window [sequences, seq + 1]: ids are all but the last column, labels all but
/// the first.
model::TokenBatch batch_from_windows(const int32_t* windows, int64_t sequences, int64_t seq);

/// [step][micro-batch] of random tokens below `vocabulary`, the same for the same seed; with a
/// packed shape documents of random lengths.
std::vector<std::vector<model::TokenBatch>> random_steps(uint64_t seed, size_t steps,
                                                         int64_t micro_batches,
                                                         model::BatchShape shape,
                                                         int32_t vocabulary);

/// Says where the curves differ, but for their weights, which are many.
void expect_same_bits(const Curve& curve, const Curve& expected);

/// Largest absolute difference between two weight vectors of equal length.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);

/// The packed weights of a checkpoint in the order of Curve::weights.
std::vector<float> packed_weights(const model::CheckpointReader& reader);

}  // namespace headrace::test
