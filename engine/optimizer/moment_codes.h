#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "base/units.h"

// 8-bit moments. An array of them is cut in blocks of kMomentBlock elements, each with one scale
// byte, and every element is a small floating-point number relative to the scale: no sign or one
// bit of it, then exponent and mantissa, with subnormals. Scales are powers of two, so decoding is
// exact, and numbers that were decoded are encoded to themselves, whatever they are copied through.
// Blocks begin at multiples of kMomentBlock elements of a parameter and are never shared by two.

namespace headrace::engine {

inline constexpr Elements kMomentBlock{64};

inline constexpr Elements moment_blocks(Elements count) {
  return Elements(ceil_div(count.count(), kMomentBlock.count()));
}

/// One of the two codes. A magnitude code is an exponent field above the mantissa: value f where
/// the field is 0, else (2^mantissa + f) * 2^(field - 1), in steps. The scale byte is the biased
/// exponent of fp32 that the top field stands for.
struct MomentCode {
  int mantissa_bits;
  bool has_sign;  ///< bit 7
  /// A value above 0 is never stored as 0: a second moment of 0 would make an infinite step.
  bool keeps_above_zero;

  constexpr int top_field() const { return (1 << ((has_sign ? 7 : 8) - mantissa_bits)) - 1; }
  /// Powers of two from the step to the top field's.
  constexpr int range() const { return mantissa_bits + top_field() - 1; }
  /// Scales below it mean the same: the step stays a normal number.
  constexpr uint32_t smallest_scale() const { return static_cast<uint32_t>(range()) + 1; }

  /// Bits of a mantissa of fp32 that a code does not have.
  constexpr uint32_t cut_bits() const { return static_cast<uint32_t>(23 - mantissa_bits); }
  /// The smallest normal number, as a word and in steps.
  constexpr uint32_t smallest_normal() const { return 1U << static_cast<uint32_t>(mantissa_bits); }
  /// What the exponent field of fp32 has more than the code's for the same steps, above the
  /// mantissa.
  constexpr uint32_t bias() const {
    return static_cast<uint32_t>(126 + mantissa_bits) << static_cast<uint32_t>(mantissa_bits);
  }
  /// Biased exponent of fp32 of the step of a finite block.
  constexpr uint32_t step_exponent(uint32_t scale) const {
    return std::max(scale, smallest_scale()) - static_cast<uint32_t>(range());
  }
};

/// First moments, and the momentum of SGD.
inline constexpr MomentCode kSignedMoment{
    .mantissa_bits = 4, .has_sign = true, .keeps_above_zero = false};
/// Second moments.
inline constexpr MomentCode kSquareMoment{
    .mantissa_bits = 4, .has_sign = false, .keeps_above_zero = true};

/// Of blocks that hold a value which is not finite, or above 1.9 * 2^127: all of it decodes to NaN.
inline constexpr uint32_t kScaleNotFinite = 255;

/// The scale byte of a block whose largest magnitude has these bits. 0: the smallest scale.
inline constexpr uint32_t scale_for(const MomentCode& code, uint32_t largest_bits) {
  // Up to the next power of two where rounding could go beyond the largest code.
  const uint32_t carry = (1U << code.cut_bits()) - 1U;
  const uint32_t scale = std::min((largest_bits + carry) >> 23U, kScaleNotFinite);
  return scale <= code.smallest_scale() ? 0 : scale;
}
/// What a magnitude code of 1 is worth in a block; NaN where it is not finite.
inline constexpr float step_of(const MomentCode& code, uint32_t scale) {
  if (scale == kScaleNotFinite) {
    return std::bit_cast<float>(0x7fc00000U);
  }
  return std::bit_cast<float>(code.step_exponent(scale) << 23U);
}
/// 1 / step_of() of a finite block.
inline constexpr float inverse_step_of(const MomentCode& code, uint32_t scale) {
  return std::bit_cast<float>((254U - code.step_exponent(scale)) << 23U);
}

float decode_moment(const MomentCode& code, uint8_t word, uint32_t scale);

/// Encodes a block of at most kMomentBlock values, each to the nearest code, and returns its scale.
uint32_t encode_moments(const MomentCode& code, std::span<const float> values, uint8_t* words);

/// What stochastic rounding draws from: a hash of each element's number in the model, so that it
/// does not depend on shards, threads or instruction sets. It is MurmurHash3's finalizer of the
/// number's lower 32 bits, with a key before each of its two multiplications: one is added, one is
/// XORed. The lower half of it is for the first moment, the upper for the second.
struct RoundingKey {
  /// For the elements whose number has these upper 32 bits.
  RoundingKey(uint64_t seed, int64_t step, uint32_t upper_bits);

  uint32_t added;
  uint32_t mixed;
};

}  // namespace headrace::engine
