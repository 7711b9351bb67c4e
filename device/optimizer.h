#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/units.h"

namespace headrace::device {

enum class OptimizerRule : uint8_t {
  adam,     ///< torch.optim.AdamW, or Adam where the decay goes into the gradient
  adagrad,  ///< torch.optim.Adagrad
  lion,     ///< Chen et al. 2023, algorithm 2
  sgd,      ///< torch.optim.SGD
  rewrite,  ///< changes no value; the 16-bit weights are rounded from the master once more
};

/// Numbers of one optimizer step, in the fp32 that the arithmetic runs in; a rule reads those that
/// its formula has. A plain value: kernels take it as an argument.
struct OptimizerStep {
  OptimizerRule rule = OptimizerRule::adam;
  bool decays_gradient = false;  ///< weight_decay times the weight is added to the gradient
  bool has_momentum = false;     ///< sgd: moment1 is there
  bool is_first = false;         ///< sgd: the buffer begins as the gradient
  bool nesterov = false;         ///< sgd
  float gradient_scale = 1;
  float weight_decay = 0;
  float keep = 1;   ///< adam that does not decay the gradient, lion: multiplies the weight before
  float beta1 = 0;  ///< of sgd the momentum
  float one_minus_beta1 = 1;  ///< of sgd 1 - dampening
  float beta2 = 0;
  float one_minus_beta2 = 1;
  float inverse_correction2 = 1;  ///< adam: 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float step_size = 0;  ///< multiplies what the rule makes of the gradient
  /// adam with bf16 moments, where is_fused; otherwise it is that of fp32 moments.
  bool is_fused = false;
  float gradient1 = 0;     ///< of the gradient in the first moment, and
  float gradient2 = 0;     ///< before it is squared; with its scale where it is not decayed
  float quotient[4] = {};  ///< base/reciprocal.h's terms times step_size
};

/// Arrays of `count` elements, each aligned to its elements; none overlaps another. The fp32 master
/// is `master`, or split into a bf16 `weight` and `master_low` (base/split_float.h), or, with
/// weight_is_master, the bf16 weight alone. A plain value.
struct OptimizerArrays {
  float* master = nullptr;
  uint16_t* master_low = nullptr;
  void* weight = nullptr;            ///< where not null: gets the new 16-bit weight
  DType weight_dtype = DType::bf16;  ///< bf16 or f16
  bool weight_is_master = false;
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  DType moment_dtype = DType::f32;  ///< f32 or bf16
  const void* gradient = nullptr;   ///< before gradient_scale
  DType gradient_dtype = DType::f32;
  int64_t count = 0;
};

/// Moment arrays that a rule works on.
constexpr int moment_arrays(const OptimizerStep& step) {
  switch (step.rule) {
    case OptimizerRule::adam:
      return 2;
    case OptimizerRule::adagrad:
    case OptimizerRule::lion:
      return 1;
    case OptimizerRule::sgd:
      return step.has_momentum ? 1 : 0;
    case OptimizerRule::rewrite:
      return 0;
  }
  return 0;
}

/// Gradient statistics are summed in blocks of this many elements.
inline constexpr Elements kStatisticsBlock{65536};

/// Blocks of `count` elements, the last one may be short.
constexpr int64_t statistics_blocks(Elements count) {
  return ceil_div(count.count(), kStatisticsBlock.count());
}

}  // namespace headrace::device
