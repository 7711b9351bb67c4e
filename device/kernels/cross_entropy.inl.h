#pragma once

#include <cstdint>

#include "device/kernels/convert.inl.h"
#include "device/kernels/math.inl.h"

namespace headrace::device::kernels {

/// Label of a token that has no loss and no gradient.
inline constexpr int32_t kIgnoredLabel = -100;

/// Running softmax statistics of one token: see device::CrossEntropyState.
struct SoftmaxState {
  float max;
  float sum;
  float target_logit;
};

/// The state with `columns` further logits folded in; they are vocabulary entries first.. .
template <class Block>
HR_KERNEL SoftmaxState cross_entropy_tile_row(const Block& block, const float* logits,
                                              int64_t columns, int64_t first, int32_t label,
                                              SoftmaxState state) {
  constexpr float kInfinity = __builtin_huge_valf();
  const float tile_max =
      block.reduce_max(columns, [=](int64_t i) HR_KERNEL_LAMBDA { return logits[i]; });
  const float new_max = tile_max > state.max ? tile_max : state.max;
  // While every logit so far is -inf any finite shift will do; -inf - -inf would be NaN.
  const float shift = new_max == -kInfinity ? 0.0F : new_max;
  const float tile_sum = block.reduce_sum(
      columns, [=](int64_t i) HR_KERNEL_LAMBDA { return exp_f32(logits[i] - shift); });
  const int64_t target = label - first;
  return {new_max, state.sum * exp_f32(state.max - shift) + tile_sum,
          target >= 0 && target < columns ? logits[target] : state.target_logit};
}

/// dlogits = (softmax(logits) - onehot(label)) * scale for the same tile; zeros for an ignored
/// label.
template <class Block, class T>
HR_KERNEL void cross_entropy_gradient_row(const Block& block, const float* logits, int64_t columns,
                                          int64_t first, int32_t label, SoftmaxState state,
                                          float scale, T* dlogits) {
  if (label == kIgnoredLabel) {
    block.for_each(columns, [=](int64_t i) HR_KERNEL_LAMBDA { dlogits[i] = from_f32<T>(0.0F); });
    return;
  }
  const float inverse = 1.0F / state.sum;
  const auto target = label - first;
  block.for_each(columns, [=](int64_t i) HR_KERNEL_LAMBDA {
    const float probability = exp_f32(logits[i] - state.max) * inverse;
    const float onehot = i == target ? 1.0F : 0.0F;
    dlogits[i] = from_f32<T>((probability - onehot) * scale);
  });
}

/// Negative log-likelihood of one token; its exponentials were taken relative to max.
HR_KERNEL double cross_entropy_loss_of(SoftmaxState state) {
  return static_cast<double>(state.max) + static_cast<double>(log_f32(state.sum)) -
         static_cast<double>(state.target_logit);
}

}  // namespace headrace::device::kernels
