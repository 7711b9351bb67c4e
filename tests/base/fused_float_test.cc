#include "base/fused_float.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace headrace {
namespace {

void expect_fused(float a, float b, float c) {
  const float expected = std::fma(a, b, c);
  const float got = fused_multiply_add(a, b, c);
  ASSERT_TRUE(std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(expected) ||
              (std::isnan(got) && std::isnan(expected)))
      << a << " * " << b << " + " << c << ": " << got << ", not " << expected;
}

TEST(FusedFloat, EqualsTheLibraryOnAnyBits) {
  Random random(1, 0);
  const auto any = [&] { return std::bit_cast<float>(random.next_u32()); };
  for (int i = 0; i < 300'000; ++i) {
    ASSERT_NO_FATAL_FAILURE(expect_fused(any(), any(), any()));
  }
}

/// Addends some 30 binades around the product, where the sum in double is inexact and close to a
/// tie of fp32, and around the opposite of the product; down to subnormal results.
TEST(FusedFloat, EqualsTheLibraryWhereRoundingTwiceWouldNot) {
  Random random(2, 0);
  int would_differ = 0;
  for (int i = 0; i < 300'000; ++i) {
    const int exponent = i % 3 == 0 ? -70 : static_cast<int>(random.below(40)) - 20;
    const auto value = [&](int at) {
      // Few bits, so that ties are frequent.
      const auto mantissa = static_cast<int>(random.below(1U << (4 + random.below(21))));
      return std::ldexp(static_cast<float>((random.next_u32() & 1U) == 0 ? mantissa : -mantissa),
                        at);
    };
    const float a = value(exponent);
    const float b = value(exponent);
    const float c = i % 2 == 0 ? value(2 * exponent + static_cast<int>(random.below(60)) - 30)
                               : -a * b * (1 + std::ldexp(1.0F, -static_cast<int>(i % 24)));
    ASSERT_NO_FATAL_FAILURE(expect_fused(a, b, c));
    const auto twice = static_cast<float>(static_cast<double>(a) * b + c);
    would_differ += twice == std::fma(a, b, c) ? 0 : 1;
  }
  EXPECT_GT(would_differ, 0) << "no case needs the rounding to odd";
}

TEST(FusedFloat, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float values[] = {0.0F, -0.0F,  1.0F,    -1.0F,   kInfinity, -kInfinity,
                          NAN,  1e-45F, -1e-40F, 3.4e38F, -3.4e38F};
  for (const float a : values) {
    for (const float b : values) {
      for (const float c : values) {
        ASSERT_NO_FATAL_FAILURE(expect_fused(a, b, c));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
