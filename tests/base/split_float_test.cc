#include "base/split_float.h"

#include <gtest/gtest.h>

#include <cmath>

namespace headrace {
namespace {

/// Whether `halves` are what split() promises for a number that is not NaN: the parts complete each
/// other, and the weight is the nearest bf16 value, of two the one further from zero.
bool is_right(float value, SplitFloat halves) {
  if (std::bit_cast<uint32_t>(join(halves)) != std::bit_cast<uint32_t>(value)) {
    return false;
  }
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isinf(value) || std::isnan(value)) {
    return halves.weight == bits >> 16U && halves.low == 0;
  }
  // The two bf16 values around: as doubles, so that the one after the largest is a number too.
  const auto below = static_cast<uint16_t>(bits >> 16U);
  const auto exact = [](uint16_t words) {
    const int exponent = (words >> 7) & 0xff;
    const int mantissa = words & 0x7f;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
    return (words & 0x8000U) != 0 ? -magnitude : magnitude;
  };
  const auto above = static_cast<uint16_t>(below + 1);
  const double to_below = std::abs(value - exact(below));
  const double to_above = std::abs(exact(above) - value);
  return halves.weight == (to_below < to_above ? below : above);
}

void expect_all_right(uint64_t stride) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32U; bits += stride) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const SplitFloat halves = split(value);
    if (std::isnan(value)) {
      const float back = join(halves);
      ASSERT_TRUE(std::isnan(back) && std::signbit(back) == std::signbit(value)) << bits;
      ASSERT_TRUE(std::isnan(to_float(Bf16{halves.weight}))) << bits;
    } else {
      ASSERT_TRUE(is_right(value, halves)) << bits;
    }
  }
}

TEST(SplitFloat, SomeValues) {
  EXPECT_EQ(split(1.0F).weight, 0x3f80);
  EXPECT_EQ(split(1.0F).low, 0);
  // 1 + 2^-8 is half way: away from zero, also below it.
  EXPECT_EQ(split(1.00390625F).weight, 0x3f81);
  EXPECT_EQ(split(-1.00390625F).weight, 0xbf81);
  EXPECT_EQ(split(std::numeric_limits<float>::max()).weight, 0x7f80);  // infinity
  EXPECT_EQ(join(split(std::numeric_limits<float>::max())), std::numeric_limits<float>::max());
}

TEST(SplitFloat, IsTheNearestAndCanBeUndone) {
  expect_all_right(4099);
}

/// A minute; run with the label slow.
TEST(SplitFloatSlow, IsTheNearestAndCanBeUndoneForEveryValue) {
  expect_all_right(1);
}

}  // namespace
}  // namespace headrace
