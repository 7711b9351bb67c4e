#include "base/reciprocal.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace headrace {
namespace {

struct Steps {
  float seed;
  float rest;
};
Steps steps(float x) {
  const auto seed = std::bit_cast<float>(kReciprocalSeed - std::bit_cast<uint32_t>(x));
  return {seed, std::fma(-x, seed, kReciprocalCentre)};
}

TEST(Reciprocal, EveryMantissa) {
  double worst = 0;
  double worst_rounded = 0;
  for (uint32_t mantissa = 0; mantissa < 1U << 23U; ++mantissa) {
    const auto x = std::bit_cast<float>(0x3f800000U + mantissa);
    const auto [seed, rest] = steps(x);
    double exact = 0;
    float rounded = 0;
    for (int i = 3; i >= 0; --i) {
      exact = exact * rest + kReciprocalTerms[i];
      rounded = std::fma(rounded, rest, static_cast<float>(kReciprocalTerms[i]));
    }
    worst = std::max(worst, std::abs(exact * seed * x - 1));
    worst_rounded = std::max(worst_rounded, std::abs(static_cast<double>(rounded * seed) * x - 1));
  }
  EXPECT_LT(worst, 0x1p-26);
  EXPECT_LT(worst_rounded, 0x1.4p-23);  // a rounding of the sum and one of the product
}

/// Everything scales with powers of two, so what holds in one binade holds in all of them.
TEST(Reciprocal, EveryBinade) {
  for (int exponent = -126; exponent < 126; ++exponent) {
    for (const float x : {1.0F, 1.3F, 1.414F, 1.415F, 1.9999999F}) {
      const auto [seed, rest] = steps(x);
      const auto [scaled_seed, scaled_rest] = steps(std::ldexp(x, exponent));
      EXPECT_EQ(scaled_seed, std::ldexp(seed, -exponent)) << x << " " << exponent;
      EXPECT_EQ(scaled_rest, rest) << x << " " << exponent;
    }
  }
}

}  // namespace
}  // namespace headrace
