#include "engine/optimizer/update_coefficients.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/reciprocal.h"

// clang-format off
#include "base/exact_float.h"
// clang-format on

namespace headrace::engine {
namespace {

float f32(double value) {
  return static_cast<float>(value);
}

// These two are functions, and not inlined, because g++ does not apply base/exact_float.h to the
// constructors below.

/// What a decay leaves of a weight.
[[gnu::noinline]] float kept(const UpdateOptions& o) {
  return f32(1.0 - o.lr * o.weight_decay);
}

/// Adagrad's.
[[gnu::noinline]] float decayed_lr(const UpdateOptions& o) {
  return f32(o.lr / (1.0 + static_cast<double>(o.step - 1) * o.lr_decay));
}

/// 1 - beta^step, or 1 where it does not correct.
double bias_correction(const UpdateOptions& o, double beta) {
  return o.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(o.step)) : 1.0;
}

}  // namespace

AdamCoefficients::AdamCoefficients(const UpdateOptions& o)
    : decays_gradient(!o.decoupled_weight_decay && o.weight_decay != 0),
      keep(kept(o)),
      weight_decay(f32(o.weight_decay)),
      beta1(f32(o.beta1)),
      one_minus_beta1(f32(1.0 - o.beta1)),
      beta2(f32(o.beta2)),
      one_minus_beta2(f32(1.0 - o.beta2)),
      inverse_correction2(f32(1.0 / std::sqrt(bias_correction(o, o.beta2)))),
      eps(f32(o.eps)),
      step_size(f32(o.lr / bias_correction(o, o.beta1))) {}

FusedAdamCoefficients::FusedAdamCoefficients(const UpdateOptions& o)
    : decays_gradient(!o.decoupled_weight_decay && o.weight_decay != 0),
      gradient_scale(o.gradient_scale),
      keep(decays_gradient ? 1.0F : kept(o)),
      weight_decay(f32(o.weight_decay)),
      beta1(f32(o.beta1)),
      beta2(f32(o.beta2)),
      inverse_correction2(f32(1.0 / std::sqrt(bias_correction(o, o.beta2)))),
      eps(f32(o.eps)) {
  const double scale = decays_gradient ? 1.0 : o.gradient_scale;
  gradient1 = f32((1.0 - o.beta1) * scale);
  gradient2 = f32(std::sqrt(1.0 - o.beta2) * scale);
  const double step = o.lr / bias_correction(o, o.beta1);
  step_size = f32(step);
  std::transform(std::begin(kReciprocalTerms), std::end(kReciprocalTerms), quotient,
                 [&](double term) { return f32(term * step); });
  const auto is_moderate = [](double x) { return x >= 0x1p-60 && x <= 0x1p60; };
  is_safe = is_moderate(eps) && is_moderate(gradient_scale) && is_moderate(inverse_correction2) &&
            (step == 0 || is_moderate(step));
}

AdagradCoefficients::AdagradCoefficients(const UpdateOptions& o)
    : weight_decay(f32(o.weight_decay)), eps(f32(o.eps)), step_size(decayed_lr(o)) {}

LionCoefficients::LionCoefficients(const UpdateOptions& o)
    : keep(kept(o)),
      beta1(f32(o.beta1)),
      one_minus_beta1(f32(1.0 - o.beta1)),
      beta2(f32(o.beta2)),
      one_minus_beta2(f32(1.0 - o.beta2)),
      lr(f32(o.lr)) {}

SgdCoefficients::SgdCoefficients(const UpdateOptions& o)
    : is_first(o.step == 1),
      nesterov(o.nesterov),
      weight_decay(f32(o.weight_decay)),
      momentum(f32(o.momentum)),
      one_minus_dampening(f32(1.0 - o.dampening)),
      lr(f32(o.lr)) {}

}  // namespace headrace::engine
