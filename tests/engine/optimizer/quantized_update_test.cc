// Updates with 8-bit moments against an oracle, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/engine/optimizer/quantized_arrays.h"
#include "tests/support/instruction_sets.h"

namespace headrace::engine {
namespace {

using headrace::testing::ForcedInstructionSet;
using headrace::testing::ForcedThreads;
using headrace::testing::instruction_sets;
using testing::MasterKind;
using testing::Moments;
using testing::option_mix;
using testing::oracle_draw;
using testing::oracle_encode;
using testing::OracleBlock;
using testing::OracleCode;
using testing::Shard8;
using testing::update_by_scalars;
using testing::Variant;

constexpr int64_t kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void encode(OracleCode code, const UpdateOptions& options, int64_t first_element,
            testing::Column& values, int64_t count, Moments& to) {
  for (int64_t i = 0; i < count; i += kBlock) {
    std::vector<float> block;
    std::vector<uint32_t> draws;
    for (int64_t j = i; j < std::min(count, i + kBlock); ++j) {
      block.push_back(values.value(j));
      const uint32_t word =
          oracle_draw(options.seed, options.step, static_cast<uint64_t>(first_element + j));
      draws.push_back(code == OracleCode::signed_moment ? word & 0xffffU : word >> 16U);
    }
    const OracleBlock encoded = oracle_encode(code, block, draws);
    to.scales[static_cast<size_t>(i / kBlock)] = encoded.scale;
    std::copy(encoded.words.begin(), encoded.words.end(), to.words.begin() + i);
  }
}

/// The fp32 update of what the moments stand for, and the new moments rounded one by one.
bool update_by_oracle(const UpdateOptions& options, Shard8& s) {
  const int moments = moment_count(options.kind, options.momentum);
  const int64_t count = s.arrays.count();
  for (int64_t i = 0; i < count; ++i) {
    s.arrays.moment1().set_value(i, s.first.value(OracleCode::signed_moment, i));
    s.arrays.moment2().set_value(i, s.second.value(OracleCode::square_moment, i));
  }
  const bool all_finite = update_by_scalars(options, s.arrays);
  encode(OracleCode::signed_moment, options, s.first_element, s.arrays.moment1(), count, s.first);
  if (moments > 1) {
    encode(OracleCode::square_moment, options, s.first_element, s.arrays.moment2(), count,
           s.second);
  }
  for (int64_t i = 0; i < count; ++i) {  // they served as a scratch
    s.arrays.moment1().set_value(i, 0);
    s.arrays.moment2().set_value(i, 0);
  }
  return all_finite;
}

std::vector<UpdateOptions> options_with_8_bits() {
  std::vector<UpdateOptions> all;
  for (UpdateOptions options : option_mix()) {
    if (has_8bit_moments(options.kind) && moment_count(options.kind, options.momentum) > 0) {
      options.seed = 77;
      all.push_back(options);
    }
  }
  return all;
}

TEST(QuantizedUpdate, EqualsTheOracleOnEveryInstructionSet) {
  for (const UpdateOptions& options : options_with_8_bits()) {
    for (const MasterKind master : testing::kMasterKinds) {
      for (const bool accumulated : {false, true}) {
        const Variant variant{master, DType::f32, accumulated ? DType::f32 : DType::bf16,
                              accumulated};
        SCOPED_TRACE(
            fmt::format("optimizer {}, {}", static_cast<int>(options.kind), variant.name()));
        for (const int64_t count : {1, 63, 64, 65, 200, 448}) {
          Shard8 expected(variant, count);
          ASSERT_TRUE(update_by_oracle(options, expected));
          for (const int64_t set : instruction_sets()) {
            const ForcedInstructionSet forced(set);
            for (const int64_t offset : {0, 13, 32}) {
              SCOPED_TRACE(fmt::format("{}, {} from {}", hwy::TargetName(set), count, offset));
              Shard8 got(variant, count, offset);
              ASSERT_TRUE(update(options, got.shard()).all_finite);
              got.expect_equal(expected);
              if (HasFailure()) {
                return;
              }
            }
          }
        }
      }
    }
  }
}

/// Steps one after another, where moments are what training leaves: also zeros and tiny values.
TEST(QuantizedUpdate, EqualsTheOracleOverManySteps) {
  constexpr int64_t kCount = 3 * kBlock + 20;
  const Variant variant{MasterKind::split, DType::f32, DType::bf16, false};
  Shard8 expected(variant, kCount);
  for (Moments* moments : {&expected.first, &expected.second}) {
    std::fill_n(moments->words.begin(), kCount, uint8_t{0});
    std::fill_n(moments->scales.begin(), 4, uint8_t{0});
  }
  Shard8 got = expected;
  UpdateOptions options;
  options.seed = 3;
  for (options.step = 1; options.step <= 60; ++options.step) {
    for (Shard8* each : {&expected, &got}) {
      each->arrays.fill_gradient(static_cast<uint64_t>(options.step));
      for (int64_t i = 0; i < kCount; ++i) {  // blocks of zeros, of wide range, of tiny numbers
        const float factor = i < 30           ? 0.0F
                             : i < 2 * kBlock ? std::exp2(-static_cast<float>(i % 23))
                                              : (i < 3 * kBlock ? 1e-20F : 1e3F);
        each->arrays.gradient().set_value(i, each->arrays.gradient().value(i) * factor);
      }
    }
    ASSERT_TRUE(update_by_oracle(options, expected));
    ASSERT_TRUE(update(options, got.shard()).all_finite);
    got.expect_equal(expected);
    ASSERT_FALSE(HasFailure()) << options.step;
  }
}

TEST(QuantizedUpdate, SameBitsForAnyThreadCountAndSplit) {
  constexpr int64_t kCount = 150'001;  // several blocks of threads
  const Variant variant{MasterKind::split, DType::f32, DType::bf16, true};
  // In the middle of it the numbers of the elements outgrow 32 bits.
  const int64_t first_element = (int64_t{1} << 32) - 70'016;
  UpdateOptions options = options_with_8_bits()[1];
  Shard8 expected(variant, kCount);
  expected.first_element = first_element;
  ASSERT_TRUE(update_by_oracle(options, expected));
  for (const int threads : {1, 2, 3}) {
    const ForcedThreads limited(threads);
    Shard8 whole(variant, kCount);
    whole.first_element = first_element;
    EXPECT_TRUE(update(options, whole.shard()).all_finite);
    whole.expect_equal(expected);
    Shard8 pieces(variant, kCount);
    pieces.first_element = first_element;
    for (int64_t begin = 0; begin < kCount;) {
      const int64_t count = std::min<int64_t>(kCount - begin, (begin % 40'000 / 64 + 65) * kBlock);
      update(options, pieces.part(begin, count));
      begin += count;
    }
    pieces.expect_equal(expected);
  }
  // Other numbers, another seed or another step are other draws.
  for (const int change : {0, 1, 2}) {
    Shard8 other(variant, kCount);
    other.first_element = first_element + (change == 0 ? kBlock : 0);
    UpdateOptions changed = options;
    changed.seed += change == 1 ? 1 : 0;
    changed.bias_correction = false;
    changed.step += change == 2 ? 1 : 0;
    update(changed, other.shard());
    EXPECT_NE(other.first, expected.first);
  }
}

TEST(QuantizedUpdate, FindsASingleBadValueWhereverItIs) {
  constexpr int64_t kCount = 65'536 + 101;
  for (const UpdateOptions& options : options_with_8_bits()) {
    Shard8 start({MasterKind::with_bf16, DType::f32, DType::f32, false}, kCount, 5);
    for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (const int64_t at : {int64_t{0}, int64_t{40}, int64_t{65'535}, kCount - 60, kCount - 1}) {
        for (const int64_t set : instruction_sets()) {
          const ForcedInstructionSet forced(set);
          Shard8 got = start;
          got.arrays.gradient().set_value(at, bad);
          EXPECT_FALSE(update(options, got.shard()).all_finite) << at;
          EXPECT_EQ(got.first.scales[static_cast<size_t>(at / kBlock)], 255);
          // It is not forgotten.
          got.arrays.gradient().set_value(at, 0);
          EXPECT_FALSE(update(options, got.shard()).all_finite) << at;
        }
      }
    }
  }
}

TEST(QuantizedUpdate, BrokenPreconditionsAreInternalErrors) {
  Shard8 good({MasterKind::plain, DType::f32, DType::f32, false}, 100);
  EXPECT_NO_THROW(update(UpdateOptions{}, good.shard()));
  UpdateShard shard = good.shard();
  shard.scale2 = nullptr;
  EXPECT_THROW(update(UpdateOptions{}, shard), InternalError);
  shard = good.shard();
  shard.first_element = 32;
  EXPECT_THROW(update(UpdateOptions{}, shard), InternalError);
  EXPECT_THROW(slice(good.shard(), Elements(10), Elements(20)), InternalError);
  UpdateOptions adagrad;
  adagrad.kind = OptimizerKind::adagrad;
  EXPECT_THROW(update(adagrad, good.shard()), InternalError);
}

}  // namespace
}  // namespace headrace::engine
