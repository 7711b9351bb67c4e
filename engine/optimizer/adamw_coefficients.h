#pragma once

#include <cmath>

#include "engine/optimizer/adamw.h"

namespace headrace::engine {

/// Elements that one thread updates at a time.
inline constexpr int64_t kAdamWBlock = int64_t{1} << 16;

/// What the kernel needs of the options: computed in double, rounded to fp32 once, as PyTorch does.
struct AdamWCoefficients {
  bool decoupled;
  float gradient_scale;
  float keep;          ///< 1 - lr * weight_decay
  float weight_decay;  ///< for the gradient; not decoupled only
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_correction2;  ///< 1 / sqrt(1 - beta2^step)
  float eps;
  float step_size;  ///< lr / (1 - beta1^step)
};

inline AdamWCoefficients adamw_coefficients(const AdamWOptions& o) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1.0 - std::pow(o.beta1, step) : 1.0;
  const double correction2 = o.bias_correction ? 1.0 - std::pow(o.beta2, step) : 1.0;
  AdamWCoefficients c{};
  // Without decay both modes agree; the decoupled one does not multiply 0 by an infinite weight.
  c.decoupled = o.adam_w_mode || o.weight_decay == 0;
  c.gradient_scale = o.gradient_scale;
  c.keep = static_cast<float>(1.0 - o.lr * o.weight_decay);
  c.weight_decay = static_cast<float>(o.weight_decay);
  c.beta1 = static_cast<float>(o.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - o.beta1);
  c.beta2 = static_cast<float>(o.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - o.beta2);
  c.inverse_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  c.eps = static_cast<float>(o.eps);
  c.step_size = static_cast<float>(o.lr / correction1);
  return c;
}

}  // namespace headrace::engine
