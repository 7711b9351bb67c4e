#pragma once

#include <bit>
#include <cstdint>

#include "base/reciprocal.h"
#include "base/split_float.h"
#include "device/kernels/convert.inl.h"
#include "device/kernels/math.inl.h"
#include "device/optimizer.h"

namespace headrace::device::kernels {

// One step of an optimizer over kCount elements at a time, which are taken into arrays of the
// kernel, so that every loop is a plain one over fp32. The operations and their order are those of
// the host's optimizers (engine/optimizer), bit for bit: what is fused there is fused here.
//
// Access moves kCount elements between memory and such an array:
//   load(const T* source, T (&values)[kCount]), store(const T (&values)[kCount], T* target).

/// An Access element by element, for any address.
struct ElementAccess {
  template <class T, int kCount>
  HR_KERNEL void load(const T* source, T (&values)[kCount]) const {
    for (int i = 0; i < kCount; ++i) {
      values[i] = source[i];
    }
  }
  template <class T, int kCount>
  HR_KERNEL void store(const T (&values)[kCount], T* target) const {
    for (int i = 0; i < kCount; ++i) {
      target[i] = values[i];
    }
  }
};

/// The values of kCount elements.
template <int kCount>
struct OptimizerValues {
  float master[kCount];
  float gradient[kCount];
  float moment1[kCount];
  float moment2[kCount];
};

template <int kCount, class T, class Access>
HR_KERNEL void load_as_f32(const Access& access, const void* array, int64_t at,
                           float (&values)[kCount]) {
  T stored[kCount];
  access.load(static_cast<const T*>(array) + at, stored);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = to_f32(stored[i]);
  }
}

template <int kCount, class T, class Access>
HR_KERNEL void store_from_f32(const Access& access, const float (&values)[kCount], void* array,
                              int64_t at) {
  T stored[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    stored[i] = from_f32<T>(values[i]);
  }
  access.store(stored, static_cast<T*>(array) + at);
}

template <int kCount, class Access>
HR_KERNEL void load_gradient(const Access& access, const OptimizerArrays& arrays, int64_t at,
                             float (&values)[kCount]) {
  if (arrays.gradient_dtype == DType::f32) {
    load_as_f32<kCount, float>(access, arrays.gradient, at, values);
  } else if (arrays.gradient_dtype == DType::bf16) {
    load_as_f32<kCount, Bf16>(access, arrays.gradient, at, values);
  } else {
    load_as_f32<kCount, F16>(access, arrays.gradient, at, values);
  }
}

template <int kCount, class Access>
HR_KERNEL void load_moment(const Access& access, const OptimizerArrays& arrays, const void* moment,
                           int64_t at, float (&values)[kCount]) {
  if (arrays.moment_dtype == DType::f32) {
    load_as_f32<kCount, float>(access, moment, at, values);
  } else {
    load_as_f32<kCount, Bf16>(access, moment, at, values);
  }
}

template <int kCount, class Access>
HR_KERNEL void store_moment(const Access& access, const OptimizerArrays& arrays,
                            const float (&values)[kCount], void* moment, int64_t at) {
  if (arrays.moment_dtype == DType::f32) {
    store_from_f32<kCount, float>(access, values, moment, at);
  } else {
    store_from_f32<kCount, Bf16>(access, values, moment, at);
  }
}

template <int kCount, class Access>
HR_KERNEL void load_master(const Access& access, const OptimizerArrays& arrays, int64_t at,
                           float (&values)[kCount]) {
  if (arrays.master != nullptr) {
    access.load(arrays.master + at, values);
    return;
  }
  uint16_t weight[kCount];
  uint16_t low[kCount] = {};
  access.load(static_cast<const uint16_t*>(arrays.weight) + at, weight);
  if (!arrays.weight_is_master) {
    access.load(arrays.master_low + at, low);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = join({weight[i], low[i]});
  }
}

/// Where it is, and the 16-bit weight beside it.
template <int kCount, class Access>
HR_KERNEL void store_master(const Access& access, const float (&values)[kCount],
                            const OptimizerArrays& arrays, int64_t at) {
  if (arrays.master != nullptr) {
    access.store(values, arrays.master + at);
  }
  if (arrays.weight == nullptr) {
    return;
  }
  if (arrays.weight_dtype == DType::f16) {
    store_from_f32<kCount, F16>(access, values, arrays.weight, at);
    return;
  }
  uint16_t weight[kCount];
  uint16_t low[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const SplitFloat halves = split(values[i]);
    weight[i] = halves.weight;
    low[i] = halves.low;
  }
  access.store(weight, static_cast<uint16_t*>(arrays.weight) + at);
  if (arrays.master_low != nullptr) {
    access.store(low, arrays.master_low + at);
  }
}

// Rules: apply() takes the scaled gradient of one element; a moment that a rule does not have is
// left alone.

struct AdamRule {
  static HR_KERNEL void apply(const OptimizerStep& s, float& master, float gradient, float& exp_avg,
                              float& exp_avg_sq) {
    if (s.decays_gradient) {
      gradient = gradient + master * s.weight_decay;
    } else {
      master = master * s.keep;
    }
    exp_avg = exp_avg * s.beta1 + gradient * s.one_minus_beta1;
    exp_avg_sq = exp_avg_sq * s.beta2 + gradient * s.one_minus_beta2 * gradient;
    const float denominator = sqrt_f32(exp_avg_sq) * s.inverse_correction2 + s.eps;
    master = master - exp_avg * s.step_size / denominator;
  }
};

/// The largest magnitude as bits: above kLargestFinite where a value is not finite.
template <int kCount>
HR_KERNEL uint32_t largest_bits(const float (&values)[kCount]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]) & 0x7fffffffU;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}
inline constexpr uint32_t kLargestFinite = 0x7f7fffff;

/// Adam with bf16 moments: fused operations, and base/reciprocal.h in place of the division.
struct FusedAdamRule {
  static HR_KERNEL float denominator(const OptimizerStep& s, float exp_avg_sq) {
    return fma_f32(sqrt_f32(exp_avg_sq), s.inverse_correction2, s.eps);
  }

  /// `master` becomes the new one, or something not finite; then apply_exactly() makes it from
  /// `decayed`.
  static HR_KERNEL void apply(const OptimizerStep& s, float& master, float& decayed, float gradient,
                              float& exp_avg, float& exp_avg_sq) {
    if (s.decays_gradient) {
      decayed = master;
      gradient = fma_f32(master, s.weight_decay, gradient * s.gradient_scale);
    } else {
      decayed = master * s.keep;
    }
    exp_avg = fma_f32(gradient, s.gradient1, exp_avg * s.beta1);
    const float scaled = gradient * s.gradient2;
    exp_avg_sq = fma_f32(scaled, scaled, exp_avg_sq * s.beta2);
    const float below = denominator(s, exp_avg_sq);
    const auto seed = std::bit_cast<float>(kReciprocalSeed - std::bit_cast<uint32_t>(below));
    const float rest = fma_f32(-below, seed, kReciprocalCentre);
    float quotient = fma_f32(rest, s.quotient[3], s.quotient[2]);
    quotient = fma_f32(rest, quotient, s.quotient[1]);
    quotient = fma_f32(rest, quotient, s.quotient[0]);
    master = fma_f32(-(exp_avg * seed), quotient, decayed);
  }

  static HR_KERNEL float apply_exactly(const OptimizerStep& s, float decayed, float exp_avg,
                                       float exp_avg_sq) {
    return decayed - exp_avg * s.step_size / denominator(s, exp_avg_sq);
  }

  template <int kCount>
  static HR_KERNEL void apply_to_each(const OptimizerStep& step, OptimizerValues<kCount>& v) {
    float decayed[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      apply(step, v.master[i], decayed[i], v.gradient[i], v.moment1[i], v.moment2[i]);
    }
    if (largest_bits(v.master) > kLargestFinite) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool is_finite =
            (std::bit_cast<uint32_t>(v.master[i]) & 0x7fffffffU) <= kLargestFinite;
        v.master[i] =
            is_finite ? v.master[i] : apply_exactly(step, decayed[i], v.moment1[i], v.moment2[i]);
      }
    }
  }
};

struct AdagradRule {
  static HR_KERNEL void apply(const OptimizerStep& s, float& master, float gradient, float& sum,
                              float& /*none*/) {
    if (s.decays_gradient) {
      gradient = gradient + master * s.weight_decay;
    }
    sum = sum + gradient * gradient;
    master = master - gradient * s.step_size / (sqrt_f32(sum) + s.eps);
  }
};

struct LionRule {
  static HR_KERNEL void apply(const OptimizerStep& s, float& master, float gradient, float& exp_avg,
                              float& /*none*/) {
    const float direction = exp_avg * s.beta1 + gradient * s.one_minus_beta1;
    exp_avg = exp_avg * s.beta2 + gradient * s.one_minus_beta2;
    // step_size * sign(direction): a zero, and a NaN, stays what it is.
    const float forward = direction > 0 ? s.step_size : direction;
    const float change = direction < 0 ? -s.step_size : forward;
    master = master * s.keep - change;
  }
};

struct SgdRule {
  static HR_KERNEL void apply(const OptimizerStep& s, float& master, float gradient, float& buffer,
                              float& /*none*/) {
    if (s.decays_gradient) {
      gradient = gradient + master * s.weight_decay;
    }
    if (s.has_momentum) {
      buffer = s.is_first ? gradient : buffer * s.beta1 + gradient * s.one_minus_beta1;
      gradient = s.nesterov ? gradient + buffer * s.beta1 : buffer;
    }
    master = master - gradient * s.step_size;
  }
};

template <class Rule, int kCount>
HR_KERNEL void apply_to_each(const OptimizerStep& step, OptimizerValues<kCount>& v) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    Rule::apply(step, v.master[i], v.gradient[i] * step.gradient_scale, v.moment1[i], v.moment2[i]);
  }
}

template <int kCount>
HR_KERNEL void apply_rule(const OptimizerStep& step, DType moment_dtype,
                          OptimizerValues<kCount>& values) {
  switch (step.rule) {
    case OptimizerRule::adam:
      if (step.is_fused && moment_dtype == DType::bf16) {
        FusedAdamRule::apply_to_each(step, values);
      } else {
        apply_to_each<AdamRule>(step, values);
      }
      return;
    case OptimizerRule::adagrad:
      apply_to_each<AdagradRule>(step, values);
      return;
    case OptimizerRule::lion:
      apply_to_each<LionRule>(step, values);
      return;
    case OptimizerRule::sgd:
      apply_to_each<SgdRule>(step, values);
      return;
    case OptimizerRule::rewrite:
      return;
  }
}

/// Elements [at, at + kCount). Returns whether every new master and moment is finite.
template <int kCount, class Access>
HR_KERNEL bool update_elements(const Access& access, const OptimizerStep& step,
                               const OptimizerArrays& arrays, int64_t at) {
  const int moments = moment_arrays(step);
  OptimizerValues<kCount> values = {};
  load_master(access, arrays, at, values.master);
  if (step.rule != OptimizerRule::rewrite) {
    load_gradient(access, arrays, at, values.gradient);
  }
  if (moments > 0) {
    load_moment(access, arrays, arrays.moment1, at, values.moment1);
  }
  if (moments > 1) {
    load_moment(access, arrays, arrays.moment2, at, values.moment2);
  }
  apply_rule(step, arrays.moment_dtype, values);
  store_master(access, values.master, arrays, at);
  if (moments > 0) {
    store_moment(access, arrays, values.moment1, arrays.moment1, at);
  }
  if (moments > 1) {
    store_moment(access, arrays, values.moment2, arrays.moment2, at);
  }
  // Of two moments an infinite first one shows in the second. No choice between the arrays here: on
  // the GPU it would put them into memory.
  const uint32_t of_first = moments == 1 ? largest_bits(values.moment1) : 0;
  const uint32_t of_second = largest_bits(values.moment2);
  return largest_bits(values.master) <= kLargestFinite && of_first <= kLargestFinite &&
         of_second <= kLargestFinite;
}

}  // namespace headrace::device::kernels
