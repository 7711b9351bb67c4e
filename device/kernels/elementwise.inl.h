#pragma once

#include <cstdint>

#include "device/kernels/convert.inl.h"
#include "device/kernels/math.inl.h"

namespace headrace::device::kernels {

/// target[i] = source[i], converted.
template <class Block, class Source, class Target>
HR_KERNEL void cast_row(const Block& block, const Source* source, Target* target, int64_t count) {
  block.for_each(
      count, [=](int64_t i) HR_KERNEL_LAMBDA { target[i] = from_f32<Target>(to_f32(source[i])); });
}

/// out[i] = a[i] + b[i]; out may be a or b.
template <class Block, class T>
HR_KERNEL void add_row(const Block& block, const T* a, const T* b, T* out, int64_t count) {
  block.for_each(count, [=](int64_t i) HR_KERNEL_LAMBDA {
    out[i] = from_f32<T>(to_f32(a[i]) + to_f32(b[i]));
  });
}

/// target[i] += source[i] in fp32.
template <class Block, class T>
HR_KERNEL void accumulate_row(const Block& block, const T* source, float* target, int64_t count) {
  block.for_each(count,
                 [=](int64_t i) HR_KERNEL_LAMBDA { target[i] = target[i] + to_f32(source[i]); });
}

template <class T>
HR_KERNEL double square_f64(T stored) {
  const auto value = static_cast<double>(to_f32(stored));
  return value * value;
}

/// Sum of values[i]^2 in fp64; NaN or inf exactly when a value is not finite.
template <class Block, class T>
HR_KERNEL double sum_of_squares(const Block& block, const T* values, int64_t count) {
  return block.reduce_sum_f64(count,
                              [=](int64_t i) HR_KERNEL_LAMBDA { return square_f64(values[i]); });
}

/// out[i] = silu(gate[i]) * up[i]; out may be gate or up.
template <class Block, class T>
HR_KERNEL void swiglu_forward_row(const Block& block, const T* gate, const T* up, T* out,
                                  int64_t count) {
  block.for_each(count, [=](int64_t i) HR_KERNEL_LAMBDA {
    out[i] = from_f32<T>(silu_f32(to_f32(gate[i])) * to_f32(up[i]));
  });
}

/// Gradients of swiglu_forward_row; dgate and dup may be gate and up.
template <class Block, class T>
HR_KERNEL void swiglu_backward_row(const Block& block, const T* dout, const T* gate, const T* up,
                                   T* dgate, T* dup, int64_t count) {
  block.for_each(count, [=](int64_t i) HR_KERNEL_LAMBDA {
    const float x = to_f32(gate[i]);
    const float gradient = to_f32(dout[i]);
    const float up_value = to_f32(up[i]);
    const float sigmoid = sigmoid_f32(x);
    const float slope = sigmoid * (1.0F + x * (1.0F - sigmoid));
    dgate[i] = from_f32<T>(gradient * up_value * slope);
    dup[i] = from_f32<T>(gradient * (x * sigmoid));
  });
}

/// Of a row of tokens within its sequence, or within its document where `begins` says where that
/// begins.
HR_KERNEL int64_t position_of(int64_t row, int64_t seq, const int32_t* begins) {
  return row % seq - (begins == nullptr ? 0 : begins[row]);
}

/// Rotates the pairs (i, i + head_dim / 2) of every head of one row by the angles of its position;
/// cos_sin: [head_dim], first half cosines, second half sines; sign is -1 to rotate back.
template <class Block, class T>
HR_KERNEL void rope_row(const Block& block, T* x, int64_t heads, int64_t head_dim,
                        const float* cos_sin, float sign) {
  const int64_t half = head_dim / 2;
  block.for_each_2d(heads, half, [=](int64_t head, int64_t i) HR_KERNEL_LAMBDA {
    T* low = x + head * head_dim;
    T* high = low + half;
    const float cosine = cos_sin[i];
    const float sine = cos_sin[half + i] * sign;
    const float a = to_f32(low[i]);
    const float b = to_f32(high[i]);
    low[i] = from_f32<T>(a * cosine - b * sine);
    high[i] = from_f32<T>(b * cosine + a * sine);
  });
}

}  // namespace headrace::device::kernels
