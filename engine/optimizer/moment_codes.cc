#include "engine/optimizer/moment_codes.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "base/random.h"

namespace headrace::engine {

namespace {

constexpr uint32_t kMagnitude = 0x7fffffffU;

/// Keeps these draws apart from others with the same seed.
constexpr uint64_t kRoundingStream = 0x6d6f6d656e747338U;

}  // namespace

float decode_moment(const MomentCode& code, uint8_t word, uint32_t scale) {
  const uint32_t bits = word & (code.has_sign ? 0x7fU : 0xffU);
  const float steps = bits < code.smallest_normal()
                          ? static_cast<float>(bits)
                          : std::bit_cast<float>((bits + code.bias()) << code.cut_bits());
  const float magnitude = steps * step_of(code, scale);
  return code.has_sign && (word & 0x80U) != 0 ? -magnitude : magnitude;
}

uint32_t encode_moments(const MomentCode& code, std::span<const float> values, uint8_t* words) {
  HR_CHECK(static_cast<int64_t>(values.size()) <= kMomentBlock.count(), "a block of {} moments",
           values.size());
  uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  }
  const uint32_t scale = scale_for(code, largest);
  if (scale == kScaleNotFinite) {
    std::fill_n(words, values.size(), uint8_t{0});
    return scale;
  }
  const float inverse = inverse_step_of(code, scale);
  const auto normal = static_cast<float>(code.smallest_normal());
  for (size_t i = 0; i < values.size(); ++i) {
    const float steps = std::abs(values[i]) * inverse;
    // A smallest normal number added gives subnormals the spacing that they have in the code.
    const uint32_t added = steps < normal ? code.smallest_normal() : 0;
    const float shifted = steps + static_cast<float>(added);
    const uint32_t half = 1U << (code.cut_bits() - 1);
    uint32_t word =
        ((std::bit_cast<uint32_t>(shifted) + half) >> code.cut_bits()) - code.bias() - added;
    if (code.keeps_above_zero && values[i] > 0) {
      word = std::max(word, 1U);
    }
    const bool is_negative = code.has_sign && std::signbit(values[i]);
    words[i] = static_cast<uint8_t>(is_negative ? word | 0x80U : word);
  }
  return scale;
}

RoundingKey::RoundingKey(uint64_t seed, int64_t step, uint32_t upper_bits) {
  const std::array<uint32_t, 4> words =
      philox(seed ^ kRoundingStream, static_cast<uint64_t>(step), upper_bits);
  added = words[0];
  mixed = words[1];
}

}  // namespace headrace::engine
