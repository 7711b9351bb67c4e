#pragma once

#include "engine/optimizer/update.h"

namespace headrace::engine {

// What the kernels need of the options: computed in double, rounded to fp32 once, as PyTorch does.

struct AdamCoefficients {
  explicit AdamCoefficients(const UpdateOptions& options);

  bool decays_gradient;  ///< weight decay goes into the gradient; otherwise the weights are scaled
  float keep;            ///< 1 - lr * weight_decay
  float weight_decay;    ///< for the gradient
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_correction2;  ///< 1 / sqrt(1 - beta2^step)
  float eps;
  float step_size;  ///< lr / (1 - beta1^step)
};

/// Of Adam with bf16 moments: the gradient's scale is in its factors, the step size in the
/// quotient.
struct FusedAdamCoefficients {
  explicit FusedAdamCoefficients(const UpdateOptions& options);

  bool is_safe;          ///< otherwise the approximate quotient could go wrong without a trace
  bool decays_gradient;  ///< as AdamCoefficients; the gradient is then scaled before the factors
  float gradient_scale;
  float keep;
  float weight_decay;
  float beta1;
  float gradient1;  ///< multiplies the gradient in the first moment: 1 - beta1
  float beta2;
  float gradient2;  ///< multiplies the gradient that is squared: sqrt(1 - beta2)
  float inverse_correction2;
  float eps;
  float step_size;
  float quotient[4];  ///< kReciprocalTerms times the step size
};

struct AdagradCoefficients {
  explicit AdagradCoefficients(const UpdateOptions& options);

  float weight_decay;
  float eps;
  float step_size;  ///< lr / (1 + (step - 1) * lr_decay)
};

struct LionCoefficients {
  explicit LionCoefficients(const UpdateOptions& options);

  float keep;  ///< 1 - lr * weight_decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float lr;
};

struct SgdCoefficients {
  explicit SgdCoefficients(const UpdateOptions& options);

  bool is_first;  ///< the buffer begins as the gradient, not damped
  bool nesterov;
  float weight_decay;
  float momentum;
  float one_minus_dampening;
  float lr;
};

}  // namespace headrace::engine
