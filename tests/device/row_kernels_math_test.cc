#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "device/kernels/convert.inl.h"
#include "device/kernels/math.inl.h"
#include "tests/device/row_kernels_testing.h"

namespace headrace::device::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// |got - exact| in units in the last place of the exact value (of the subnormals below 2^-126).
double ulp_error(float got, double exact) {
  const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

/// Calls f with every `step`-th bit pattern between two floats of the same sign.
template <class F>
void for_each_float(float from, float to, uint32_t step, const F& f) {
  auto first = std::bit_cast<uint32_t>(from);
  auto last = std::bit_cast<uint32_t>(to);
  if (first > last) {
    std::swap(first, last);
  }
  for (uint64_t bits = first; bits <= last; bits += step) {
    f(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
}

TEST(RowKernelsMath, ExpIsWithinItsBound) {
  double worst = 0;
  const auto check = [&](float x) {
    const double exact = std::exp(static_cast<double>(x));
    if (exact > std::numeric_limits<float>::max()) {
      return;
    }
    worst = std::max(worst, ulp_error(exp_f32(x), exact));
  };
  for_each_float(0.0F, 88.72F, 997, check);
  for_each_float(-0.0F, -104.0F, 997, check);
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.5);
}

TEST(RowKernelsMath, ExpOfSpecialValues) {
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-0.0F), 1.0F);
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_EQ(exp_f32(88.8F), kInfinity);
  EXPECT_EQ(exp_f32(1e30F), kInfinity);
  EXPECT_EQ(exp_f32(-kInfinity), 0.0F);
  EXPECT_EQ(exp_f32(-1e30F), 0.0F);
  EXPECT_EQ(exp_f32(-103.5F), 0x1p-149F);
  EXPECT_EQ(exp_f32(1e-45F), 1.0F);
  EXPECT_TRUE(std::isnan(exp_f32(kNan)));
}

TEST(RowKernelsMath, LogIsWithinItsBound) {
  double worst = 0;
  for_each_float(std::bit_cast<float>(1U), std::numeric_limits<float>::max(), 997, [&](float x) {
    worst = std::max(worst, ulp_error(log_f32(x), std::log(static_cast<double>(x))));
  });
  for_each_float(0.5F, 2.0F, 31, [&](float x) {
    worst = std::max(worst, ulp_error(log_f32(x), std::log(static_cast<double>(x))));
  });
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.5);
}

TEST(RowKernelsMath, LogOfSpecialValues) {
  EXPECT_EQ(log_f32(1.0F), 0.0F);
  EXPECT_EQ(log_f32(0.0F), -kInfinity);
  EXPECT_EQ(log_f32(-0.0F), -kInfinity);
  EXPECT_EQ(log_f32(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(log_f32(-1.0F)));
  EXPECT_TRUE(std::isnan(log_f32(-kInfinity)));
  EXPECT_TRUE(std::isnan(log_f32(kNan)));
}

TEST(RowKernelsMath, SigmoidAndSiluAreWithinTheirBounds) {
  double worst_sigmoid = 0;
  double worst_silu = 0;
  const auto check = [&](float x) {
    const double exact = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    worst_sigmoid = std::max(worst_sigmoid, ulp_error(sigmoid_f32(x), exact));
    worst_silu = std::max(worst_silu, ulp_error(silu_f32(x), exact * static_cast<double>(x)));
  };
  for_each_float(0.0F, 1e30F, 1009, check);
  for_each_float(-0.0F, -87.0F, 1009, check);
  RecordProperty("worst_sigmoid_ulp", std::to_string(worst_sigmoid));
  RecordProperty("worst_silu_ulp", std::to_string(worst_silu));
  EXPECT_LE(worst_sigmoid, 2.5);
  EXPECT_LE(worst_silu, 3.0);
  for (const float x : {-87.5F, -88.5F, -90.0F, -1000.0F, -1e30F}) {
    EXPECT_NEAR(silu_f32(x), 0.0, 1e-35) << x;
    EXPECT_NEAR(sigmoid_f32(x), 0.0, 1e-37) << x;
  }
  EXPECT_TRUE(std::isnan(silu_f32(kNan)));
  EXPECT_TRUE(std::isnan(silu_f32(-kInfinity)));
  EXPECT_EQ(silu_f32(kInfinity), kInfinity);
}

TEST(RowKernelsMath, NarrowTypesWidenLikeTheBaseConversions) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto stored = static_cast<uint16_t>(bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(to_f32(F16{stored})),
              std::bit_cast<uint32_t>(to_float(F16{stored})))
        << bits;
    ASSERT_EQ(std::bit_cast<uint32_t>(to_f32(Bf16{stored})), bits << 16);
  }
}

TEST(RowKernelsMath, RoundingIsThatOfTheBaseConversions) {
  for (uint64_t bits = 0; bits <= 0xffffffffU; bits += 251) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(from_f32<Bf16>(value).bits, to_bf16(value).bits) << std::hex << bits;
    ASSERT_EQ(from_f32<F16>(value).bits, to_f16(value).bits) << std::hex << bits;
  }
}

TEST(RowKernelsMath, NarrowValuesSurviveARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const Bf16 brain{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_f32(half))) {
      ASSERT_EQ(from_f32<F16>(to_f32(half)).bits, bits);
    }
    if (!std::isnan(to_f32(brain))) {
      ASSERT_EQ(from_f32<Bf16>(to_f32(brain)).bits, bits);
    }
  }
}

}  // namespace
}  // namespace headrace::device::kernels
