#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "engine/master_weights.h"
#include "engine/optimizer/moment_codes.h"
#include "tests/engine/optimizer/moment_oracle.h"
#include "tests/engine/optimizer/update_arrays.h"

namespace headrace::engine::testing {

/// Words and scales of one array of moments, with a border of known bytes behind them.
struct Moments {
  explicit Moments(int64_t count)
      : words(static_cast<size_t>(count) + 64, 0x5a),
        scales(static_cast<size_t>(moment_blocks(Elements(count)).count()) + 64, 0x5a) {}

  /// Any words, with scales near that of 1.
  void fill(uint64_t seed, int64_t count) {
    Random random(seed, 2);
    for (int64_t i = 0; i < count; ++i) {
      words[static_cast<size_t>(i)] = static_cast<uint8_t>(random.next_u32());
    }
    for (int64_t i = 0; i < moment_blocks(Elements(count)).count(); ++i) {
      scales[static_cast<size_t>(i)] = static_cast<uint8_t>(115 + random.below(14));
    }
  }
  float value(OracleCode code, int64_t i) const {
    return static_cast<float>(oracle_value(code, words[static_cast<size_t>(i)],
                                           scales[static_cast<size_t>(i / kMomentBlock.count())]));
  }
  bool operator==(const Moments&) const = default;

  std::vector<uint8_t> words;
  std::vector<uint8_t> scales;
};

/// A shard whose moments have 8 bits.
struct Shard8 {
  explicit Shard8(const Variant& variant, int64_t count, int64_t offset = 0)
      : arrays(variant, count, offset), first(count), second(count) {
    arrays.fill(3, false);
    first.fill(4, count);
    second.fill(5, count);
  }

  UpdateShard shard() {
    UpdateShard s = arrays.shard();
    s.moment_dtype = DType::u8;
    s.moment1 = first.words.data();
    s.moment2 = second.words.data();
    s.scale1 = first.scales.data();
    s.scale2 = second.scales.data();
    s.first_element = first_element;
    return s;
  }
  /// Part of it, as an engine cuts it; the gradient goes along.
  UpdateShard part(int64_t begin, int64_t count) {
    UpdateShard s = slice(shard(), Elements(begin), Elements(count));
    const UpdateShard whole = arrays.shard_from(begin, count);
    s.gradient = whole.gradient;
    s.accumulated = whole.accumulated;
    return s;
  }
  void expect_equal(const Shard8& other) const {
    arrays.expect_equal(other.arrays);
    EXPECT_EQ(first, other.first);
    EXPECT_EQ(second, other.second);
  }

  Arrays arrays;
  Moments first;
  Moments second;
  int64_t first_element = 0;
};

}  // namespace headrace::engine::testing
