#include "base/dtype.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace headrace {
namespace {

/// Nearest representable value by brute force over all 65536 patterns; ties to even.
template <class T>
uint16_t nearest_by_search(float value) {
  double best = std::numeric_limits<double>::infinity();
  uint16_t found = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float candidate = to_float(T{static_cast<uint16_t>(bits)});
    if (!std::isfinite(candidate) || std::signbit(candidate) != std::signbit(value)) {
      continue;
    }
    const double distance = std::abs(static_cast<double>(candidate) - static_cast<double>(value));
    if (distance < best || (distance == best && bits % 2 == 0)) {
      best = distance;
      found = static_cast<uint16_t>(bits);
    }
  }
  return found;
}

TEST(DType, NumbersLieAnywhereInMemory) {
  std::array<std::byte, 8> memory;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    memory.fill(std::byte{0x77});
    store_float(-1.5F, memory.data() + 1, dtype);  // exact in all three
    EXPECT_EQ(load_float(memory.data() + 1, dtype), -1.5F) << to_string(dtype);
    const auto width = static_cast<size_t>(size_of(dtype).count());
    EXPECT_EQ(memory[0], std::byte{0x77});
    EXPECT_EQ(memory[1 + width], std::byte{0x77});
  }
  store_float(1.00390625F, memory.data(), DType::bf16);  // half way: to even
  EXPECT_EQ(load_float(memory.data(), DType::bf16), 1.0F);
}

TEST(DType, EveryPatternSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float as_bf16 = to_float(Bf16{pattern});
    const float as_f16 = to_float(F16{pattern});
    if (std::isnan(as_bf16)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(as_bf16))));
    } else {
      EXPECT_EQ(to_bf16(as_bf16).bits, pattern);
    }
    if (std::isnan(as_f16)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(as_f16))));
    } else {
      EXPECT_EQ(to_f16(as_f16).bits, pattern);
    }
  }
}

TEST(DType, RoundsToNearestEven) {
  Random random(7, 1);
  for (int i = 0; i < 60; ++i) {
    const float value = random.normal() * std::exp2(static_cast<float>(random.below(36)) - 26.0F);
    EXPECT_EQ(to_f16(value).bits, nearest_by_search<F16>(value)) << value;
    EXPECT_EQ(to_bf16(value).bits, nearest_by_search<Bf16>(value)) << value;
  }
  // Ties, made exactly.
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000U)).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000U)).bits, 0x3f82);
  EXPECT_EQ(to_f16(2049.0F).bits, to_f16(2048.0F).bits);
  EXPECT_EQ(to_f16(2051.0F).bits, to_f16(2052.0F).bits);
}

TEST(DType, OverflowAndSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(to_f16(-infinity).bits, 0xfc00);
  EXPECT_EQ(to_bf16(infinity).bits, 0x7f80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(to_float(to_f16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_EQ(to_f16(0x1p-24F).bits, 1);
  EXPECT_EQ(to_f16(0x1p-26F).bits, 0);
}

}  // namespace
}  // namespace headrace
