#pragma once

#include <bit>
#include <cstdint>

#include "device/kernels/convert.inl.h"

namespace headrace::device::kernels {

// e4m3 of the OCP 8-bit Floating Point Specification (OFP8, revision 1.0): a sign, 4 bits of
// exponent with bias 7, 3 of mantissa; subnormals in units of 2^-9, 448 the largest, no infinity,
// NaN where all bits but the sign are set.

/// Storage of an e4m3 value.
struct E4m3 {
  uint8_t bits = 0;
};
static_assert(sizeof(E4m3) == 1);

HR_KERNEL float to_f32(E4m3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80U) << 24;
  const uint32_t magnitude = value.bits & 0x7fU;
  const uint32_t normal = (magnitude << 20) + (120U << 23);
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9F);
  const uint32_t finite = select(magnitude < 8U, subnormal, normal);
  return std::bit_cast<float>(sign | select(magnitude == 0x7fU, 0x7fc00000U, finite));
}

/// x rounded to nearest even; beyond the range the largest value, NaN for NaN and infinity.
HR_KERNEL E4m3 to_e4m3(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t normal = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
  // Below 2^-6: adding 2^14 aligns the mantissa to units of 2^-9 and rounds to nearest even.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14F) - 0x46800000U;
  const uint32_t rounded = select(magnitude < 0x3c800000U, subnormal, normal);
  const uint32_t finite = select(rounded < 0x7eU, rounded, 0x7eU);
  const uint32_t or_nan = select(magnitude >= 0x7f800000U, 0x7fU, finite);
  return E4m3{static_cast<uint8_t>(((bits >> 24) & 0x80U) | or_nan)};
}

/// |x| as a number for a maximum; infinity for NaN.
HR_KERNEL float magnitude_f32(float x) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7fffffffU;
  return std::bit_cast<float>(select(magnitude > 0x7f800000U, 0x7f800000U, magnitude));
}

/// A power of two and its inverse.
struct E4m3Scale {
  float to_codes;    ///< what values are multiplied by
  float from_codes;  ///< what codes are multiplied by
};

/// The largest power of two that keeps values up to `largest` in range: products with it are exact,
/// so a value is rounded once, and its code does not depend on the scale but at the lower end of
/// the range. 1 where all values are zero or one is not finite.
HR_KERNEL E4m3Scale e4m3_scale(float largest) {
  const auto bits = std::bit_cast<uint32_t>(largest);
  const auto exponent = static_cast<int32_t>(bits >> 23) - 127;
  // 448 = 1.75 * 2^8.
  const int32_t beyond = (bits & 0x7fffffU) > 0x600000U ? 1 : 0;
  const int32_t shift = 8 - beyond - exponent;
  const int32_t normal = shift > 126 ? 126 : shift;  // both factors are normal numbers
  const int32_t power = largest == 0.0F || exponent == 128 ? 0 : normal;
  return {std::bit_cast<float>(static_cast<uint32_t>(127 + power) << 23),
          std::bit_cast<float>(static_cast<uint32_t>(127 - power) << 23)};
}

/// Largest magnitude of values[i], 0 for none; infinity where one is not finite.
template <class Block, class T>
HR_KERNEL float largest_magnitude_row(const Block& block, const T* values, int64_t count) {
  const float largest = block.reduce_max(
      count, [=](int64_t i) HR_KERNEL_LAMBDA { return magnitude_f32(to_f32(values[i])); });
  return largest > 0.0F ? largest : 0.0F;
}

/// codes[i] = values[i] * to_codes in e4m3.
template <class Block, class T>
HR_KERNEL void quantize_row(const Block& block, const T* values, float to_codes, E4m3* codes,
                            int64_t count) {
  block.for_each(
      count, [=](int64_t i) HR_KERNEL_LAMBDA { codes[i] = to_e4m3(to_f32(values[i]) * to_codes); });
}

}  // namespace headrace::device::kernels
