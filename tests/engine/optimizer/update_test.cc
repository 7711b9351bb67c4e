#include "engine/optimizer/update.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/engine/optimizer/update_arrays.h"
#include "tests/support/instruction_sets.h"

namespace headrace::engine {
namespace {

using headrace::testing::ForcedInstructionSet;
using headrace::testing::ForcedThreads;
using headrace::testing::instruction_sets;
using testing::all_variants;
using testing::Arrays;
using testing::MasterKind;
using testing::option_mix;
using testing::update_by_scalars;
using testing::Variant;

std::string name(const UpdateOptions& options, const Variant& variant) {
  return fmt::format("optimizer {}, step {}, {}", static_cast<int>(options.kind), options.step,
                     variant.name());
}

TEST(Update, EqualsTheScalarsOnEveryInstructionSet) {
  for (const UpdateOptions& options : option_mix()) {
    for (const Variant& variant : all_variants()) {
      SCOPED_TRACE(name(options, variant));
      for (const int64_t count : {1, 15, 16, 31, 32, 33, 64, 131, 400}) {
        Arrays start(variant, count);
        start.fill(3);
        start.make_sums_positive(options);
        Arrays expected = start;
        ASSERT_TRUE(update_by_scalars(options, expected));
        for (const int64_t set : instruction_sets()) {
          const ForcedInstructionSet forced(set);
          for (const int64_t offset : {0, 1, 13, 32}) {
            SCOPED_TRACE(
                fmt::format("{}, {} elements from {}", hwy::TargetName(set), count, offset));
            Arrays got(variant, count, offset);
            got.fill(3);
            got.make_sums_positive(options);
            ASSERT_TRUE(update(options, got.shard()).all_finite);
            got.expect_equal(expected);
            if (HasFatalFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

TEST(Update, SameBitsForAnyThreadCountAndSplit) {
  constexpr int64_t kCount = 150'001;  // several blocks
  for (const UpdateOptions& options : {option_mix()[1], option_mix()[6]}) {
    for (const Variant& variant : {Variant{MasterKind::with_bf16, DType::f32, DType::bf16, true},
                                   Variant{MasterKind::split, DType::f32, DType::bf16, true},
                                   Variant{MasterKind::split, DType::bf16, DType::bf16, false}}) {
      SCOPED_TRACE(name(options, variant));
      Arrays expected(variant, kCount);
      expected.fill(5);
      update_by_scalars(options, expected);
      for (const int threads : {1, 2, 3}) {
        const ForcedThreads limited(threads);
        Arrays whole(variant, kCount);
        whole.fill(5);
        EXPECT_TRUE(update(options, whole.shard()).all_finite);
        whole.expect_equal(expected);

        Arrays pieces(variant, kCount);
        pieces.fill(5);
        for (int64_t begin = 0; begin < kCount;) {
          const int64_t count = std::min<int64_t>(kCount - begin, begin % 40'000 + 4099);
          update(options, pieces.shard_from(begin, count));
          begin += count;
        }
        pieces.expect_equal(expected);
      }
    }
  }
}

TEST(Update, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float values[] = {
      0.0F,     -0.0F,    kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
      1e-45F,   -1e-40F,  1e-38F,    3.4e38F,    -3.4e38F,
      65504.0F, 65520.0F, 6e-8F,     1.0F,       -2e-6F,
      1e19F};
  constexpr int64_t kKinds = std::size(values);
  constexpr int64_t kCount = kKinds * kKinds * 3;
  for (const UpdateOptions& options : option_mix()) {
    for (const Variant& variant : all_variants()) {
      SCOPED_TRACE(name(options, variant));
      Arrays start(variant, kCount);
      start.fill(8);
      for (int64_t i = 0; i < kCount; ++i) {
        start.set_master(i, values[i % kKinds]);
        start.gradient().set_value(i, values[i / kKinds % kKinds]);
        if (i / kKinds / kKinds > 0) {
          start.moment1().set_value(i, values[(i + i / kKinds) % kKinds]);
        }
        if (i / kKinds / kKinds > 1) {
          start.moment2().set_value(i, std::abs(values[(i + i / kKinds) % kKinds]));
        }
      }
      Arrays expected = start;
      ASSERT_FALSE(update_by_scalars(options, expected));
      for (const int64_t set : instruction_sets()) {
        SCOPED_TRACE(hwy::TargetName(set));
        const ForcedInstructionSet forced(set);
        Arrays got = start;
        ASSERT_FALSE(update(options, got.shard()).all_finite);
        got.expect_equal(expected);
        for (int64_t i = 0; i < kCount; ++i) {
          ASSERT_TRUE(!std::isnan(got.master(i)) || !got.has_weight() || std::isnan(got.weight(i)));
        }
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(Update, FindsASingleBadValueWhereverItIs) {
  constexpr int64_t kCount = 131'072 + 101;  // three blocks, each with an end that is not a vector
  for (const OptimizerKind kind :
       {OptimizerKind::adam, OptimizerKind::adagrad, OptimizerKind::lion, OptimizerKind::sgd}) {
    UpdateOptions options;
    options.kind = kind;
    options.momentum = 0.9;
    options.step = 2;
    Arrays start({MasterKind::with_bf16, DType::f32, DType::f32, false}, kCount, 5);
    start.fill(2);
    start.make_sums_positive(options);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      for (const int64_t at : {int64_t{0}, int64_t{40}, int64_t{65'535}, kCount - 60, kCount - 1}) {
        Arrays arrays = start;
        arrays.gradient().set_value(at, bad);
        EXPECT_FALSE(update(options, arrays.shard()).all_finite) << at;
      }
    }
    // An infinite second moment or sum stops the master from moving, which would hide it.
    Arrays arrays({MasterKind::with_bf16, DType::f32, DType::f32, false}, 100);
    arrays.fill(2);
    arrays.make_sums_positive(options);
    EXPECT_TRUE(update(options, arrays.shard()).all_finite);
    (kind == OptimizerKind::adam ? arrays.moment2() : arrays.moment1())
        .set_value(50, std::numeric_limits<float>::infinity());
    EXPECT_FALSE(update(options, arrays.shard()).all_finite);
  }
}

/// lr 0 leaves the master as it is, so that any bit pattern can be sent through the roundings.
TEST(Update, RoundsWeightsAsTheBaseConversions) {
  UpdateOptions options;
  options.lr = 0;
  constexpr int64_t kCount = 1 << 16;
  for (const MasterKind master : {MasterKind::with_bf16, MasterKind::with_f16, MasterKind::split}) {
    for (const int64_t set : instruction_sets()) {
      const ForcedInstructionSet forced(set);
      for (const uint32_t stride : {65537U, 65521U * 3}) {
        Arrays arrays({master, DType::f32, DType::f32, false}, kCount);
        arrays.fill(1);
        for (int64_t i = 0; i < kCount; ++i) {
          arrays.set_master(i, std::bit_cast<float>(static_cast<uint32_t>(i) * stride));
        }
        update(options, arrays.shard());
        for (int64_t i = 0; i < kCount; ++i) {
          const auto value = std::bit_cast<float>(static_cast<uint32_t>(i) * stride);
          ASSERT_TRUE(Arrays::same(arrays.master(i), value)) << i;
          if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(arrays.weight(i)))
                << i << " " << hwy::TargetName(set) << " " << static_cast<int>(master);
          } else {
            ASSERT_EQ(arrays.weight_word(i),
                      master == MasterKind::with_f16 ? to_f16(value).bits : split(value).weight)
                << i << " " << hwy::TargetName(set);
          }
        }
      }
    }
  }
}

/// Every 16-bit gradient, through an SGD step that makes the new weight the negative gradient.
TEST(Update, ReadsEvery16BitGradient) {
  UpdateOptions options;
  options.kind = OptimizerKind::sgd;
  options.lr = 1;
  constexpr int64_t kCount = 1 << 16;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const int64_t set : instruction_sets()) {
      const ForcedInstructionSet forced(set);
      Arrays arrays({MasterKind::plain, DType::f32, dtype, false}, kCount);
      for (int64_t i = 0; i < kCount; ++i) {
        arrays.gradient().set_word(i, static_cast<uint16_t>(i));
      }
      update(options, arrays.shard());
      for (int64_t i = 0; i < kCount; ++i) {
        ASSERT_TRUE(Arrays::same(arrays.master(i), 0.0F - arrays.gradient().value(i)))
            << i << " " << hwy::TargetName(set);
      }
    }
  }
}

TEST(Update, SplitMasterTrainsAsThePlainOne) {
  constexpr int64_t kCount = 1003;
  for (UpdateOptions options : option_mix()) {
    for (const DType moments : {DType::f32, DType::bf16}) {
      Arrays plain({MasterKind::with_bf16, moments, DType::bf16, false}, kCount);
      Arrays halves({MasterKind::split, moments, DType::bf16, false}, kCount);
      plain.fill(4, false);
      halves.fill(4, false);
      for (options.step = 1; options.step <= 300; ++options.step) {
        plain.fill_gradient(static_cast<uint64_t>(options.step));
        halves.fill_gradient(static_cast<uint64_t>(options.step));
        ASSERT_TRUE(update(options, plain.shard()).all_finite);
        ASSERT_TRUE(update(options, halves.shard()).all_finite);
      }
      halves.expect_equal(plain);
      for (int64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(plain.weight_word(i), halves.weight_word(i));
      }
    }
  }
}

TEST(Update, MomentCounts) {
  EXPECT_EQ(moment_count(OptimizerKind::adam, 0), 2);
  EXPECT_EQ(moment_count(OptimizerKind::adagrad, 0), 1);
  EXPECT_EQ(moment_count(OptimizerKind::lion, 0), 1);
  EXPECT_EQ(moment_count(OptimizerKind::sgd, 0), 0);
  EXPECT_EQ(moment_count(OptimizerKind::sgd, 0.9), 1);
}

TEST(Update, BrokenPreconditionsAreInternalErrors) {
  Arrays plain({MasterKind::with_bf16, DType::f32, DType::f32, false}, 4);
  Arrays halves({MasterKind::split, DType::f32, DType::f32, false}, 4);
  const auto refuses = [](const UpdateShard& good, auto&& spoil) {
    UpdateOptions options;
    UpdateShard shard = good;
    spoil(options, shard);
    EXPECT_THROW(update(options, shard), InternalError);
  };
  using O = UpdateOptions;
  using S = UpdateShard;
  refuses(plain.shard(), [](O& o, S&) { o.step = 0; });
  refuses(plain.shard(), [](O&, S& s) { s.count = Elements(-1); });
  refuses(plain.shard(), [](O&, S& s) { s.weight_dtype = DType::f32; });
  refuses(plain.shard(), [](O&, S& s) { s.gradient = nullptr; });
  refuses(plain.shard(), [](O&, S& s) { s.gradient_dtype = DType::i32; });
  refuses(plain.shard(), [](O&, S& s) { s.moment2 = nullptr; });
  refuses(plain.shard(), [](O&, S& s) { s.moment_dtype = DType::f16; });
  refuses(plain.shard(), [](O&, S& s) { s.master = nullptr; });
  refuses(plain.shard(), [](O&, S& s) { s.weight_is_master = true; });
  refuses(halves.shard(), [](O&, S& s) { s.weight_dtype = DType::f16; });
  refuses(halves.shard(), [](O&, S& s) { s.weight = nullptr; });
  refuses(halves.shard(), [&](O&, S& s) { s.master = plain.shard().master; });
  refuses(plain.shard(), [](O& o, S&) {
    o.kind = OptimizerKind::sgd;
    o.nesterov = true;
  });
  EXPECT_NO_THROW(update(UpdateOptions{}, UpdateShard{}));  // nothing to do
}

}  // namespace
}  // namespace headrace::engine
