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
  const int bits = word & (code.has_sign ? 0x7f : 0xff);
  const int field = bits >> code.mantissa_bits;
  const int fraction = bits & ((1 << code.mantissa_bits) - 1);
  const int steps = field == 0 ? fraction : (1 << code.mantissa_bits) + fraction;
  const float magnitude =
      std::ldexp(static_cast<float>(steps), std::max(field - 1, 0)) * step_of(code, scale);
  return code.has_sign && (word & 0x80) != 0 ? -magnitude : magnitude;
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
  const float normal = std::ldexp(1.0F, code.mantissa_bits);
  for (size_t i = 0; i < values.size(); ++i) {
    float steps = std::abs(values[i]) * inverse;
    if (steps < normal) {
      steps = (steps + normal) - normal;  // as the updates: to 2^(mantissa bits - 23) of a step
    }
    int exponent = 0;
    std::frexp(steps, &exponent);
    const int shift = steps < normal ? 0 : exponent - 1 - code.mantissa_bits;
    // One that is rounded up to the next power of two carries into the exponent field.
    auto word = static_cast<int>(std::floor(std::ldexp(steps, -shift) + 0.5F));
    word += shift << code.mantissa_bits;
    if (code.keeps_above_zero && word == 0 && values[i] != 0) {
      word = 1;
    }
    const bool negative = code.has_sign && std::signbit(values[i]);
    words[i] = static_cast<uint8_t>(negative ? word | 0x80 : word);
  }
  return scale;
}

RoundingKey::RoundingKey(uint64_t seed, int64_t step, uint32_t upper_bits) {
  const std::array<uint32_t, 4> words =
      philox(seed ^ kRoundingStream, static_cast<uint64_t>(step), upper_bits);
  first = words[0];
  second = words[1];
}

}  // namespace headrace::engine
