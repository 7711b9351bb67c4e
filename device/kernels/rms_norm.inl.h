#pragma once

#include <cstdint>

#include "device/kernels/convert.inl.h"
#include "device/kernels/math.inl.h"

namespace headrace::device::kernels {

/// One row of y = round_T(x * inv_rms) * weight; returns inv_rms = 1 / sqrt(mean(x^2) + epsilon).
template <class Block, class T>
HR_KERNEL float rms_norm_forward_row(const Block& block, const T* x, const T* weight, float epsilon,
                                     T* y, int64_t columns) {
  const float sum = block.reduce_sum(columns, [=](int64_t i) HR_KERNEL_LAMBDA {
    const float value = to_f32(x[i]);
    return value * value;
  });
  const float inv_rms = 1.0F / sqrt_f32(sum / static_cast<float>(columns) + epsilon);
  block.for_each(columns, [=](int64_t i) HR_KERNEL_LAMBDA {
    const float normed = to_f32(from_f32<T>(to_f32(x[i]) * inv_rms));
    y[i] = from_f32<T>(normed * to_f32(weight[i]));
  });
  return inv_rms;
}

/// One row of the backward pass: dx = inv_rms * (g - x * inv_rms^2 * mean(g * x)) with
/// g = dy * weight, added to dx where kAccumulate; dy * round_T(x * inv_rms) is added to
/// dweight [columns].
template <bool kAccumulate, class Block, class T>
HR_KERNEL void rms_norm_backward_row(const Block& block, const T* dy, const T* x, const T* weight,
                                     float inv_rms, T* dx, float* dweight, int64_t columns) {
  const float dot = block.reduce_sum(columns, [=](int64_t i) HR_KERNEL_LAMBDA {
    return to_f32(dy[i]) * to_f32(weight[i]) * (to_f32(x[i]) * inv_rms);
  });
  const float mean = dot / static_cast<float>(columns);
  block.for_each(columns, [=](int64_t i) HR_KERNEL_LAMBDA {
    const float gradient = to_f32(dy[i]);
    const float normed = to_f32(x[i]) * inv_rms;
    const float before = kAccumulate ? to_f32(dx[i]) : 0.0F;
    dweight[i] += gradient * to_f32(from_f32<T>(normed));
    dx[i] = from_f32<T>(before + inv_rms * (gradient * to_f32(weight[i]) - normed * mean));
  });
}

}  // namespace headrace::device::kernels
