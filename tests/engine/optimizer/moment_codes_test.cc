#include "engine/optimizer/moment_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "tests/engine/optimizer/moment_oracle.h"

namespace headrace::engine {
namespace {

using testing::oracle_encode;
using testing::oracle_value;
using testing::OracleBlock;
using testing::OracleCode;

constexpr int64_t kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const MomentCode& code_of(OracleCode code) {
  return code == OracleCode::signed_moment ? kSignedMoment : kSquareMoment;
}

TEST(MomentCodes, EveryWordIsWhatTheDefinitionSays) {
  for (const OracleCode code : {OracleCode::signed_moment, OracleCode::square_moment}) {
    for (int scale = 0; scale < 255; ++scale) {
      for (int word = 0; word < 256; ++word) {
        const auto byte = static_cast<uint8_t>(word);
        ASSERT_EQ(decode_moment(code_of(code), byte, static_cast<uint32_t>(scale)),
                  oracle_value(code, byte, static_cast<uint8_t>(scale)))
            << word << " " << scale;
      }
    }
    EXPECT_TRUE(std::isnan(decode_moment(code_of(code), 3, 255)));
  }
  // The ranges that the documentation states.
  EXPECT_EQ(oracle_value(OracleCode::signed_moment, 127, 127), 31.0 / 16);
  EXPECT_EQ(oracle_value(OracleCode::signed_moment, 1, 127), 0x1p-10);
  EXPECT_EQ(oracle_value(OracleCode::square_moment, 255, 127), 31.0 / 16);
  EXPECT_EQ(oracle_value(OracleCode::square_moment, 1, 127), 0x1p-18);
}

TEST(MomentCodes, EncodingIsToTheNearest) {
  Random random(1, 0);
  for (const OracleCode code : {OracleCode::signed_moment, OracleCode::square_moment}) {
    for (int round = 0; round < 2000; ++round) {
      std::vector<float> values(1 + random.below(kBlock));
      const auto exponent = static_cast<int>(random.below(240)) - 130;
      for (float& value : values) {
        const float spread = std::exp2(-20 * uniform_from(random.next_u32()));
        value = std::ldexp(random.normal() * spread, exponent);
        value = code == OracleCode::square_moment ? std::abs(value) : value;
      }
      std::vector<uint8_t> words(kBlock, 0);
      const uint32_t scale = encode_moments(code_of(code), values, words.data());
      const std::vector<uint32_t> half(values.size(), 32768);
      const OracleBlock expected = oracle_encode(code, values, half);
      words.resize(values.size());
      ASSERT_EQ(scale, expected.scale);
      ASSERT_EQ(words, expected.words);
    }
  }
}

/// What was decoded is encoded to itself, under another scale too: copies lose nothing.
TEST(MomentCodes, DecodedNumbersAreKept) {
  Random random(2, 0);
  for (const OracleCode code : {OracleCode::signed_moment, OracleCode::square_moment}) {
    for (int round = 0; round < 3000; ++round) {
      const auto scale = static_cast<uint32_t>(random.below(255));
      const auto largest = static_cast<uint32_t>(1 + random.below(256));  // often a lower binade
      std::vector<float> values(kBlock);
      for (float& value : values) {
        value = decode_moment(code_of(code), static_cast<uint8_t>(random.below(largest)), scale);
      }
      std::vector<uint8_t> words(kBlock);
      const uint32_t again = encode_moments(code_of(code), values, words.data());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(decode_moment(code_of(code), words[i], again), values[i]) << scale;
      }
    }
  }
}

TEST(MomentCodes, WhatIsNotFiniteStaysSo) {
  std::vector<uint8_t> words(3);
  for (const float bad :
       {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 3.4e38F}) {
    const std::vector<float> values = {1.0F, bad, 2.0F};
    EXPECT_EQ(encode_moments(kSignedMoment, values, words.data()), kScaleNotFinite);
  }
  EXPECT_EQ(encode_moments(kSignedMoment, std::vector<float>{0.0F, -0.0F}, words.data()), 0U);
}

}  // namespace
}  // namespace headrace::engine
