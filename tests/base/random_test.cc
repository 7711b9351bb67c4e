#include "base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace headrace {
namespace {

// Known-answer vectors published with Random123 (kat_vectors, philox4x32 10).
TEST(Random, PhiloxMatchesTheKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL),
            (std::array<uint32_t, 4>{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  // counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0
  EXPECT_EQ(philox(0x299f31d0a4093822ULL, 0x0370734413198a2eULL, 0x85a308d3243f6a88ULL),
            (std::array<uint32_t, 4>{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(Random, BelowIsUniform) {
  Random random(3, 5);
  std::vector<int> count(7, 0);
  for (int i = 0; i < 70000; ++i) {
    ++count[random.below(7)];
  }
  double chi_square = 0;
  for (const int c : count) {
    chi_square += (c - 10000.0) * (c - 10000.0) / 10000.0;
  }
  EXPECT_LT(chi_square, 22.5);  // 99.9 % quantile of chi-square with 6 degrees of freedom
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  Random random(11, 0);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.03);
}

}  // namespace
}  // namespace headrace
