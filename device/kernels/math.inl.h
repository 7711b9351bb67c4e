#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "device/kernels/convert.inl.h"

namespace headrace::device::kernels {

// Elementary functions in plain fp32 arithmetic: the same bits on every instruction set and on both
// machines, vectorised by the compiler. Polynomials are minimax fits of our own (relative error
// well below one unit in the last place); the stated bounds are checked by the tests.

/// e^x within 1.5 ulp (1 unit of the smallest subnormal below 2^-126); 0 below -104, +inf above
/// 88.73, NaN for NaN.
HR_KERNEL float exp_f32(float x) {
  const float not_low = x < -104.0F ? -104.0F : x;
  const float clamped = not_low > 89.0F ? 89.0F : not_low;
  // x = n ln2 + r with |r| <= ln2 / 2. Adding 1.5 * 2^23 rounds to an integer in the low bits. The
  // high part of ln2 has 15 bits, so n times it is exact.
  constexpr float kRound = 12582912.0F;
  const float shifted = clamped * 0x1.715476p+0F + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0x1.62e4p-1F) - n * 0x1.7f7d1cp-20F;
  float tail = 0x1.9f085ap-13F;
  tail = tail * r + 0x1.6d8d52p-10F;
  tail = tail * r + 0x1.111272p-7F;
  tail = tail * r + 0x1.55548ep-5F;
  tail = tail * r + 0x1.555554p-3F;
  tail = tail * r + 0.5F;
  const float mantissa = (tail * (r * r) + r) + 1.0F;
  // 2^n as two factors, so that subnormal and overflowing results round once, at the end.
  const auto exponent =
      static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound));
  const int32_t half = exponent >> 1;
  const uint32_t first = (static_cast<uint32_t>(half) + 127U) << 23;
  const uint32_t second = (static_cast<uint32_t>(exponent) - static_cast<uint32_t>(half) + 127U)
                          << 23;
  return mantissa * std::bit_cast<float>(first) * std::bit_cast<float>(second);
}

/// Natural logarithm within 1.5 ulp, subnormal arguments included; -inf for 0, NaN below 0 and for
/// NaN, +inf for +inf.
HR_KERNEL float log_f32(float x) {
  const bool is_small = x < 0x1p-126F;
  const float scaled = x * 0x1p24F;
  const auto bits = std::bit_cast<uint32_t>(is_small ? scaled : x);
  // x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
  const uint32_t offset = bits - 0x3f3504f3U;
  const int32_t exponent = (static_cast<int32_t>(offset) >> 23) - (is_small ? 24 : 0);
  const float f = std::bit_cast<float>((offset & 0x7fffffU) + 0x3f3504f3U) - 1.0F;
  float tail = 0x1.14631ap-4F;
  tail = tail * f - 0x1.de4fa2p-4F;
  tail = tail * f + 0x1.e6f604p-4F;
  tail = tail * f - 0x1.fc1f6cp-4F;
  tail = tail * f + 0x1.2336e2p-3F;
  tail = tail * f - 0x1.555c5ap-3F;
  tail = tail * f + 0x1.99a4bcp-3F;
  tail = tail * f - 0x1.000006p-2F;
  tail = tail * f + 0x1.555548p-2F;
  const auto n = static_cast<float>(exponent);
  const float square = f * f;
  const float low = n * 0x1.7f7d1cp-20F + (tail * f * square - 0.5F * square);
  const float finite = (low + f) + n * 0x1.62e4p-1F;
  constexpr float kInfinity = __builtin_huge_valf();
  const float or_infinity = x == kInfinity ? x : finite;
  const float or_zero = x == 0.0F ? -kInfinity : or_infinity;
  return x >= 0.0F ? or_zero : __builtin_nanf("");
}

/// 1 / (1 + e^-x) within 2.5 ulp where it is above 2^-126; 0 below -88.73, NaN for NaN.
HR_KERNEL float sigmoid_f32(float x) {
  return 1.0F / (1.0F + exp_f32(-x));
}

/// x * sigmoid(x) within 3 ulp for x above -87, and below that within 1e-36 of the true value; NaN
/// for NaN and for -inf (as PyTorch).
HR_KERNEL float silu_f32(float x) {
  return x / (1.0F + exp_f32(-x));
}

/// Correctly rounded on both machines.
HR_KERNEL float sqrt_f32(float x) {
  return std::sqrt(x);
}

/// a * b + c, rounded once on both machines.
HR_KERNEL float fma_f32(float a, float b, float c) {
  return std::fma(a, b, c);
}

}  // namespace headrace::device::kernels
