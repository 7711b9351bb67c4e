#include "model/token_data_shuffle.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/random.h"

namespace headrace::model {

Permutation::Permutation(int64_t count, uint64_t seed, uint64_t stream)
    : count_(count), seed_(seed), stream_(stream) {
  HR_CHECK(count > 0, "a permutation of {}", count);
  const int bits = std::max(2, static_cast<int>(std::bit_width(static_cast<uint64_t>(count - 1))));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

int64_t Permutation::operator()(int64_t index) const {
  HR_CHECK(index >= 0 && index < count_, "index {} of {}", index, count_);
  // Ends: the walk follows the cycle of `index`, which returns to the range at `index` at the
  // latest.
  auto value = static_cast<uint64_t>(index);
  do {
    value = encrypt(value);
  } while (value >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(value);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  constexpr uint64_t kRounds = 8;
  uint64_t low = value & ((uint64_t{1} << low_bits_) - 1);
  uint64_t high = value >> low_bits_;
  for (uint64_t round = 0; round < kRounds; ++round) {
    // Each half has at most 32 bits: round and half are one counter.
    if (round % 2 == 0) {
      const uint64_t mask = philox(seed_, stream_, (round << 32) | low)[0];
      high ^= mask & ((uint64_t{1} << high_bits_) - 1);
    } else {
      const uint64_t mask = philox(seed_, stream_, (round << 32) | high)[0];
      low ^= mask & ((uint64_t{1} << low_bits_) - 1);
    }
  }
  return (high << low_bits_) | low;
}

}  // namespace headrace::model
