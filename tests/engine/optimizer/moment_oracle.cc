#include "tests/engine/optimizer/moment_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace headrace::engine::testing {
namespace {

constexpr int kMantissaBits = 4;

bool is_signed(OracleCode code) {
  return code == OracleCode::signed_moment;
}

/// The largest exponent field: three bits of exponent beside a sign, four without.
int top_field(OracleCode code) {
  return is_signed(code) ? 7 : 15;
}

/// Of a magnitude code where the top field stands for 2^exponent.
double magnitude(OracleCode code, int word, int exponent) {
  const int field = word / (1 << kMantissaBits);
  const double part = std::ldexp(word % (1 << kMantissaBits), -kMantissaBits);
  // Field 0 has the spacing of field 1, and no leading 1.
  return std::ldexp(field == 0 ? part : 1 + part, exponent - top_field(code) + std::max(field, 1));
}

int words_of(OracleCode code) {
  return is_signed(code) ? 128 : 256;
}

/// The smallest power of two that is used: the step is then the smallest normal number of fp32.
int smallest_exponent(OracleCode code) {
  return -126 + kMantissaBits + top_field(code) - 1;
}

}  // namespace

double oracle_value(OracleCode code, uint8_t word, uint8_t scale) {
  if (scale == 255) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int exponent = std::max(static_cast<int>(scale) - 127, smallest_exponent(code));
  const double value = magnitude(code, word % words_of(code), exponent);
  return word < words_of(code) ? value : -value;
}

OracleBlock oracle_encode(OracleCode code, const std::vector<float>& values,
                          const std::vector<uint32_t>& draws) {
  OracleBlock block;
  double largest = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      block.scale = 255;
    }
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  int exponent = smallest_exponent(code);
  while (magnitude(code, words_of(code) - 1, exponent) < largest && exponent < 128) {
    ++exponent;
  }
  if (block.scale == 255 || exponent == 128) {
    block.scale = 255;
    return block;
  }
  block.scale =
      exponent == smallest_exponent(code) ? uint8_t{0} : static_cast<uint8_t>(exponent + 127);
  std::vector<double> table;
  for (int word = 0; word < words_of(code); ++word) {
    table.push_back(magnitude(code, word, exponent));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    double value = std::abs(static_cast<double>(values[i]));
    if (value < table[1 << kMantissaBits]) {  // fp32 has 19 bits below a step of subnormals
      value = std::nearbyint(value / table[1] * 0x1p19) * 0x1p-19 * table[1];
    }
    const auto above = std::upper_bound(table.begin(), table.end(), value);
    auto word = static_cast<int>(above - table.begin()) - 1;
    if (above != table.end()) {
      const double place = (value - *(above - 1)) / (*above - *(above - 1));
      word += place + draws[i] / 65536.0 >= 1 ? 1 : 0;
    }
    if (!is_signed(code) && values[i] > 0) {
      word = std::max(word, 1);
    }
    if (is_signed(code) && std::signbit(values[i])) {
      word += words_of(code);
    }
    block.words.push_back(static_cast<uint8_t>(word));
  }
  return block;
}

uint32_t oracle_draw(uint64_t seed, int64_t step, uint64_t element) {
  const auto keys = philox(seed ^ 0x6d6f6d656e747338U, static_cast<uint64_t>(step), element >> 32U);
  const auto low = [](uint64_t value) { return value & 0xffffffffU; };
  uint64_t x = low(low(element) + keys[0]);
  x = low((x ^ (x >> 16U)) * 0x85ebca6bU) ^ keys[1];
  x = low((x ^ (x >> 13U)) * 0xc2b2ae35U);
  return static_cast<uint32_t>(x ^ (x >> 16U));
}

}  // namespace headrace::engine::testing
