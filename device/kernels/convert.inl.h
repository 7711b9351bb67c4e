#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

/// Marks a function of a kernel body. Bodies are always inlined, so that they take the instruction
/// set of the function that instantiates them.
#if defined(__CUDACC__)
#define HR_KERNEL __host__ __device__ __forceinline__
#define HR_KERNEL_LAMBDA
#else
#define HR_KERNEL inline __attribute__((always_inline))
#define HR_KERNEL_LAMBDA __attribute__((always_inline))
#endif

namespace headrace::device::kernels {

// Conversions between the stored types and the fp32 of the arithmetic, without branches so that
// they vectorise. The results are those of base/dtype.h: round to nearest even, NaN stays NaN.

/// condition ? a : b, as a mask: a conditional expression invites the compiler to compute one side
/// behind a branch, and the loop no longer vectorises.
HR_KERNEL uint32_t select(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0U - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

HR_KERNEL float to_f32(float value) {
  return value;
}

HR_KERNEL float to_f32(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

HR_KERNEL float to_f32(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t magnitude = value.bits & 0x7fffU;
  const uint32_t normal = (magnitude << 13) + (112U << 23);
  const uint32_t not_finite = (magnitude << 13) + (224U << 23);
  // A subnormal is mantissa * 2^-24, exact in fp32 and not a subnormal there.
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F);
  const uint32_t finite = select(magnitude < 0x400U, subnormal, normal);
  return std::bit_cast<float>(sign | select(magnitude >= 0x7c00U, not_finite, finite));
}

/// from_f32<T>(x): x rounded to T.
template <class T>
HR_KERNEL T from_f32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40U;
    return Bf16{static_cast<uint16_t>(select(magnitude > 0x7f800000U, quiet_nan, rounded))};
  } else {
    static_assert(std::is_same_v<T, F16>, "kernels store f32, bf16 or f16");
    const uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // Below 2^-14: adding 0.5 aligns the mantissa to units of 2^-24 and rounds to nearest even.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
    const uint32_t finite = select(magnitude < 0x38800000U, subnormal, normal);
    const uint32_t or_infinity = select(magnitude >= 0x477ff000U, 0x7c00U, finite);
    const uint32_t or_nan = select(magnitude > 0x7f800000U, 0x7e00U, or_infinity);
    return F16{static_cast<uint16_t>(((bits >> 16) & 0x8000U) | or_nan)};
  }
}

}  // namespace headrace::device::kernels
