#include <cmath>

#include "base/reciprocal.h"
#include "tests/engine/optimizer/update_arrays.h"

// clang-format off
#include "base/exact_float.h"
// clang-format on

namespace headrace::engine::testing {
namespace {

float f32(double value) {
  return static_cast<float>(value);
}

/// One element; m and v are its moments.
struct Element {
  float p;
  float g;
  float m;
  float v;
};

void adam(const UpdateOptions& o, Element& e) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, step) : 1;
  const double correction2 = o.bias_correction ? 1 - std::pow(o.beta2, step) : 1;
  if (o.decoupled_weight_decay) {
    e.p = e.p * f32(1 - o.lr * o.weight_decay);
  } else if (o.weight_decay != 0) {
    e.g = e.g + e.p * f32(o.weight_decay);
  }
  e.m = e.m * f32(o.beta1) + e.g * f32(1 - o.beta1);
  e.v = e.v * f32(o.beta2) + e.g * f32(1 - o.beta2) * e.g;
  const float denominator = std::sqrt(e.v) * f32(1 / std::sqrt(correction2)) + f32(o.eps);
  e.p = e.p - e.m * f32(o.lr / correction1) / denominator;
}

/// The same with bf16 moments: fewer roundings, and no division unless what comes out is not
/// finite. e.g is the gradient before its scale.
void fused_adam(const UpdateOptions& o, Element& e) {
  const auto step = static_cast<double>(o.step);
  const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, step) : 1;
  const double correction2 = o.bias_correction ? 1 - std::pow(o.beta2, step) : 1;
  double scale = o.gradient_scale;
  if (o.decoupled_weight_decay || o.weight_decay == 0) {
    e.p = e.p * f32(1 - o.lr * o.weight_decay);
  } else {
    e.g = std::fma(e.p, f32(o.weight_decay), e.g * o.gradient_scale);
    scale = 1;
  }
  e.m = std::fma(e.g, f32((1 - o.beta1) * scale), e.m * f32(o.beta1));
  const float root = e.g * f32(std::sqrt(1 - o.beta2) * scale);
  e.v = std::fma(root, root, e.v * f32(o.beta2));
  const float x = std::fma(std::sqrt(e.v), f32(1 / std::sqrt(correction2)), f32(o.eps));
  const float seed = std::bit_cast<float>(kReciprocalSeed - std::bit_cast<uint32_t>(x));
  const float rest = std::fma(-x, seed, kReciprocalCentre);
  float inverse = 0;
  for (int i = 3; i >= 0; --i) {
    const float term = f32(kReciprocalTerms[i] * (o.lr / correction1));
    inverse = i == 3 ? term : std::fma(rest, inverse, term);
  }
  const float p = std::fma(-(e.m * seed), inverse, e.p);
  e.p = std::isfinite(p) ? p : e.p - e.m * f32(o.lr / correction1) / x;
}

void adagrad(const UpdateOptions& o, Element& e) {
  if (o.weight_decay != 0) {
    e.g = e.g + e.p * f32(o.weight_decay);
  }
  e.m = e.m + e.g * e.g;
  const double lr = o.lr / (1 + static_cast<double>(o.step - 1) * o.lr_decay);
  e.p = e.p - e.g * f32(lr) / (std::sqrt(e.m) + f32(o.eps));
}

void lion(const UpdateOptions& o, Element& e) {
  const float c = e.m * f32(o.beta1) + e.g * f32(1 - o.beta1);
  e.m = e.m * f32(o.beta2) + e.g * f32(1 - o.beta2);
  float change = c;  // zero or NaN
  if (c > 0) {
    change = f32(o.lr);
  } else if (c < 0) {
    change = -f32(o.lr);
  }
  e.p = e.p * f32(1 - o.lr * o.weight_decay) - change;
}

void sgd(const UpdateOptions& o, Element& e) {
  if (o.weight_decay != 0) {
    e.g = e.g + e.p * f32(o.weight_decay);
  }
  if (o.momentum != 0) {
    e.m = o.step == 1 ? e.g : e.m * f32(o.momentum) + e.g * f32(1 - o.dampening);
    e.g = o.nesterov ? e.g + e.m * f32(o.momentum) : e.m;
  }
  e.p = e.p - e.g * f32(o.lr);
}

void step(const UpdateOptions& o, Element& e) {
  switch (o.kind) {
    case OptimizerKind::adam:
      return adam(o, e);
    case OptimizerKind::adagrad:
      return adagrad(o, e);
    case OptimizerKind::lion:
      return lion(o, e);
    case OptimizerKind::sgd:
      return sgd(o, e);
  }
}

}  // namespace

bool update_by_scalars(const UpdateOptions& options, Arrays& arrays) {
  const int moments = moment_count(options.kind, options.momentum);
  const bool is_fused = options.kind == OptimizerKind::adam && options.eps > 0 &&
                        arrays.moment_dtype() == DType::bf16;
  bool all_finite = true;
  for (int64_t i = 0; i < arrays.count(); ++i) {
    Element e{arrays.master(i), arrays.whole_gradient(i), arrays.moment1().value(i),
              arrays.moment2().value(i)};
    if (is_fused) {
      fused_adam(options, e);
    } else {
      e.g = e.g * options.gradient_scale;
      step(options, e);
    }
    arrays.set_master(i, e.p);
    all_finite = all_finite && std::isfinite(e.p);
    if (moments > 0) {
      arrays.moment1().set_value(i, e.m);
      all_finite = all_finite && std::isfinite(e.m);
    }
    if (moments > 1) {
      arrays.moment2().set_value(i, e.v);
      all_finite = all_finite && std::isfinite(e.v);
    }
  }
  return all_finite;
}

std::vector<UpdateOptions> option_mix() {
  UpdateOptions plain;
  UpdateOptions decay;
  decay.weight_decay = 0.1;
  decay.lr = 0.02;
  decay.step = 7;
  decay.gradient_scale = 0.37F;
  UpdateOptions l2 = decay;
  l2.decoupled_weight_decay = false;
  UpdateOptions uncorrected = decay;
  uncorrected.bias_correction = false;
  uncorrected.beta1 = 0;
  uncorrected.beta2 = 0.5;
  std::vector<UpdateOptions> mix = {plain, decay, l2, uncorrected};
  UpdateOptions other = decay;
  other.kind = OptimizerKind::adagrad;
  other.lr_decay = 0.01;
  mix.push_back(other);
  other.weight_decay = 0;
  mix.push_back(other);
  other = decay;
  other.kind = OptimizerKind::lion;
  other.beta2 = 0.99;
  mix.push_back(other);
  other.weight_decay = 0;
  mix.push_back(other);
  other = decay;
  other.kind = OptimizerKind::sgd;
  mix.push_back(other);
  other.momentum = 0.9;
  other.dampening = 0.3;
  mix.push_back(other);
  other.step = 1;
  mix.push_back(other);
  other.step = 2;
  other.dampening = 0;
  other.nesterov = true;
  other.weight_decay = 0;
  mix.push_back(other);
  UpdateOptions without_eps = decay;
  without_eps.eps = 0;
  mix.push_back(without_eps);
  return mix;
}

}  // namespace headrace::engine::testing
