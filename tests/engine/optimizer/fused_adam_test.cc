// Adam with bf16 moments, whose quotient is computed without a division: how far it is from the
// formula, and that what is not finite comes out as the formula has it. The bits of its operations
// are in update_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/engine/optimizer/update_arrays.h"
#include "tests/support/instruction_sets.h"

namespace headrace::engine {
namespace {

using headrace::testing::ForcedInstructionSet;
using headrace::testing::instruction_sets;
using testing::Arrays;
using testing::MasterKind;

constexpr int64_t kNumbers = 0x7f80;  // bf16 values from 0 to the largest one

/// Without a gradient and with powers of two the new moments are exact (but for the smallest), and
/// a master of 0 becomes the change itself.
UpdateOptions bare_options(double eps) {
  UpdateOptions options;
  options.lr = 0x1p-10;
  options.beta1 = 0.5;
  options.beta2 = 0.25;
  options.eps = eps;
  options.bias_correction = false;
  return options;
}

TEST(FusedAdam, QuotientOfEverySecondMoment) {
  constexpr double kSmallest = std::numeric_limits<float>::denorm_min();
  double worst = 0;
  for (const double eps : {1e-8, 1e-15, 1e-3, 0x1p-60, 0x1p60}) {
    for (const float moment : {1.0F, -1.0F, 1.3F, 0x1.fep-20F, -0x1.7ep30F, 3e-38F, 1e-40F}) {
      const UpdateOptions options = bare_options(eps);
      Arrays arrays({MasterKind::plain, DType::bf16, DType::bf16, false}, kNumbers);
      for (int64_t i = 0; i < kNumbers; ++i) {
        arrays.moment1().set_value(i, moment);
        arrays.moment2().set_word(i, static_cast<uint16_t>(i));
      }
      ASSERT_TRUE(update(options, arrays.shard()).all_finite);
      for (int64_t i = 0; i < kNumbers; ++i) {
        const auto m = static_cast<double>(0.5F * to_float(to_bf16(moment)));
        const auto v = static_cast<double>(0.25F * to_float(Bf16{static_cast<uint16_t>(i)}));
        const double change = m * options.lr / (std::sqrt(v) + static_cast<float>(eps));
        const double error = std::abs(arrays.master(i) + change);
        ASSERT_LE(error, 0x1p-22 * std::abs(change) + kSmallest)
            << "second moment " << v << ", first " << m << ", eps " << eps;
        worst = std::max(worst, (error - kSmallest) / std::abs(change));
      }
    }
  }
  EXPECT_GT(worst, 0x1p-25) << "no rounding at all: is this the fused formula?";
}

/// Every float as the second moment of a step is out of reach; these are the denominators of 2^20
/// second moments that are no bf16 values.
TEST(FusedAdam, QuotientOfUnroundedMoments) {
  constexpr int64_t kCount = 1 << 20;
  UpdateOptions options;
  options.step = 3;
  Arrays arrays({MasterKind::plain, DType::bf16, DType::f32, false}, kCount);
  Random random(4, 0);
  for (int64_t i = 0; i < kCount; ++i) {
    arrays.gradient().set_value(i, random.normal() * std::ldexp(1.0F, -static_cast<int>(i % 40)));
  }
  ASSERT_TRUE(update(options, arrays.shard()).all_finite);
  for (int64_t i = 0; i < kCount; ++i) {
    const double g = arrays.gradient().value(i);
    const double m = (1 - options.beta1) * g;
    const double v = (1 - options.beta2) * g * g;
    const double correction1 = 1 - std::pow(options.beta1, 3);
    const double correction2 = 1 - std::pow(options.beta2, 3);
    const double change = options.lr / correction1 * m / (std::sqrt(v / correction2) + options.eps);
    // Here the coefficients and the moments are rounded too.
    ASSERT_NEAR(arrays.master(i), -change, 0x1p-21 * std::abs(change)) << g;
  }
}

/// Elements that are not finite are divided; their neighbours keep their bits.
TEST(FusedAdam, NeighboursOfWhatIsNotFinite) {
  constexpr int64_t kCount = 256;
  UpdateOptions options;
  options.step = 2;
  options.weight_decay = 0.1;
  for (const MasterKind master : testing::kMasterKinds) {
    for (const int64_t set : instruction_sets()) {
      SCOPED_TRACE(hwy::TargetName(set));
      const ForcedInstructionSet forced(set);
      Arrays clean({master, DType::bf16, DType::bf16, false}, kCount);
      clean.fill(7);
      Arrays spoilt = clean;
      const auto is_bad = [](int64_t i) { return i % 37 == 5; };
      for (int64_t i = 0; i < kCount; ++i) {
        if (is_bad(i)) {
          spoilt.moment2().set_value(i, std::numeric_limits<float>::infinity());
        }
      }
      const Arrays before = spoilt;
      ASSERT_TRUE(update(options, clean.shard()).all_finite);
      ASSERT_FALSE(update(options, spoilt.shard()).all_finite);
      for (int64_t i = 0; i < kCount; ++i) {
        if (is_bad(i)) {  // m / infinity: the decay alone
          EXPECT_NEAR(spoilt.master(i), before.master(i) * (1 - options.lr * 0.1),
                      0x1p-8 * std::abs(before.master(i)));
          EXPECT_TRUE(std::isinf(spoilt.moment2().value(i)));
        } else {
          EXPECT_TRUE(Arrays::same(spoilt.master(i), clean.master(i))) << i;
        }
      }
    }
  }
}

/// Without eps 0 / 0 is a NaN and m / 0 infinite, as PyTorch has it.
TEST(FusedAdam, WithoutEps) {
  UpdateOptions options = bare_options(0);
  Arrays arrays({MasterKind::split, DType::bf16, DType::bf16, false}, 70);
  for (int64_t i = 0; i < 70; ++i) {
    arrays.moment1().set_value(i, i % 2 == 0 ? 0.0F : 1.0F);
  }
  EXPECT_FALSE(update(options, arrays.shard()).all_finite);
  for (int64_t i = 0; i < 70; ++i) {
    EXPECT_TRUE(i % 2 == 0 ? std::isnan(arrays.master(i)) : std::isinf(arrays.master(i))) << i;
  }
}

}  // namespace
}  // namespace headrace::engine
