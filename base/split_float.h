#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace headrace {

/// A fp32 value as the bf16 weight that compute uses and the 16 bits that complete it. The weight
/// is the value rounded to nearest, ties away from zero: unlike ties to even, this rule can be
/// undone from the two halves, for every value but NaNs, which keep their sign and lose their
/// payload. Optimizers round every bf16 weight so, split or not, so that both store the same
/// weights.
struct SplitFloat {
  uint16_t weight = 0;  ///< bf16 bits
  uint16_t low = 0;     ///< low 16 bits of the fp32 value
};

constexpr SplitFloat split(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) {
    return {static_cast<uint16_t>((bits >> 16U) | 0x40U), 0};
  }
  return {static_cast<uint16_t>((bits + 0x8000U) >> 16U), static_cast<uint16_t>(bits)};
}

constexpr float join(SplitFloat halves) {
  // Rounding up carried into the weight exactly where the top bit of `low` is set.
  const uint32_t low = halves.low;
  const uint32_t carried = (low & 0x8000U) << 1U;
  return std::bit_cast<float>((uint32_t{halves.weight} << 16U) - carried + low);
}

}  // namespace headrace
