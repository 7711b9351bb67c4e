#pragma once

#include <cstdint>
#include <vector>

#include "engine/optimizer/update.h"

// The 8-bit moments written down once more from docs/optimizers.md, in double and by search in the
// table of all values that a block can hold.

namespace headrace::engine::testing {

enum class OracleCode : uint8_t {
  signed_moment,  ///< bit 7 sign
  square_moment,  ///< values above 0 stay above 0
};

/// What `word` stands for in a block with this scale byte; NaN where the block is not finite.
double oracle_value(OracleCode code, uint8_t word, uint8_t scale);

struct OracleBlock {
  uint8_t scale = 0;
  std::vector<uint8_t> words;
};
/// `draws`: [element] a number in [0, 65536). A value between two codes goes to the upper one, in
/// magnitude, where its place between them and draw / 65536 make at least 1. Below the smallest
/// normal code the place is to 2^-19.
OracleBlock oracle_encode(OracleCode code, const std::vector<float>& values,
                          const std::vector<uint32_t>& draws);

/// What the rounding of an element of the model draws from at a step: the lower half for the first
/// moment, the upper for the second.
uint32_t oracle_draw(uint64_t seed, int64_t step, uint64_t element);

}  // namespace headrace::engine::testing
