#include "engine/optimizer/device_update.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "engine/optimizer/update_coefficients.h"

namespace headrace::engine {

namespace {

using device::OptimizerRule;
using device::OptimizerStep;

/// What the rules with running averages share.
template <class Coefficients>
void set_averages(const Coefficients& c, OptimizerStep& step) {
  step.keep = c.keep;
  step.beta1 = c.beta1;
  step.one_minus_beta1 = c.one_minus_beta1;
  step.beta2 = c.beta2;
  step.one_minus_beta2 = c.one_minus_beta2;
}

/// Of the rules that always decay the gradient.
template <class Coefficients>
void set_decay(const Coefficients& c, OptimizerStep& step) {
  step.decays_gradient = c.weight_decay != 0;
  step.weight_decay = c.weight_decay;
}

void set_adam(const UpdateOptions& options, OptimizerStep& step) {
  const AdamCoefficients c(options);
  step.rule = OptimizerRule::adam;
  step.decays_gradient = c.decays_gradient;
  step.weight_decay = c.weight_decay;
  set_averages(c, step);
  step.inverse_correction2 = c.inverse_correction2;
  step.eps = c.eps;
  step.step_size = c.step_size;
  const FusedAdamCoefficients fused(options);
  step.is_fused = fused.is_safe;
  step.gradient1 = fused.gradient1;
  step.gradient2 = fused.gradient2;
  std::copy(std::begin(fused.quotient), std::end(fused.quotient), step.quotient);
}

void set_adagrad(const UpdateOptions& options, OptimizerStep& step) {
  const AdagradCoefficients c(options);
  step.rule = OptimizerRule::adagrad;
  set_decay(c, step);
  step.eps = c.eps;
  step.step_size = c.step_size;
}

void set_lion(const UpdateOptions& options, OptimizerStep& step) {
  const LionCoefficients c(options);
  step.rule = OptimizerRule::lion;
  set_averages(c, step);
  step.step_size = c.lr;
}

void set_sgd(const UpdateOptions& options, OptimizerStep& step) {
  const SgdCoefficients c(options);
  step.rule = OptimizerRule::sgd;
  set_decay(c, step);
  step.has_momentum = options.momentum != 0;
  step.is_first = c.is_first;
  step.nesterov = c.nesterov;
  step.beta1 = c.momentum;
  step.one_minus_beta1 = c.one_minus_dampening;
  step.step_size = c.lr;
}

}  // namespace

OptimizerStep device_step(const UpdateOptions& options) {
  OptimizerStep step;
  step.gradient_scale = options.gradient_scale;
  switch (options.kind) {
    case OptimizerKind::adam:
      set_adam(options, step);
      return step;
    case OptimizerKind::adagrad:
      set_adagrad(options, step);
      return step;
    case OptimizerKind::lion:
      set_lion(options, step);
      return step;
    case OptimizerKind::sgd:
      set_sgd(options, step);
      return step;
  }
  HR_CHECK(false, "unknown optimizer {}", static_cast<int>(options.kind));
}

device::OptimizerArrays device_arrays(const UpdateShard& shard) {
  HR_CHECK(shard.accumulated == nullptr, "the device's optimizer takes one gradient");
  device::OptimizerArrays arrays;
  arrays.master = shard.master;
  arrays.master_low = shard.master_low;
  arrays.weight = shard.weight;
  arrays.weight_dtype = shard.weight_dtype;
  arrays.weight_is_master = shard.weight_is_master;
  arrays.moment1 = shard.moment1;
  arrays.moment2 = shard.moment2;
  arrays.moment_dtype = shard.moment_dtype;
  arrays.gradient = shard.gradient;
  arrays.gradient_dtype = shard.gradient_dtype;
  arrays.count = shard.count.count();
  return arrays;
}

}  // namespace headrace::engine
