#pragma once

#include <cstdint>

namespace headrace::model {

/// A pseudorandom bijection of [0, count) in constant memory: a Feistel network keyed by
/// (seed, stream) over the next power of two, walked until the result is inside the range (Black
/// and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Thread-safe.
class Permutation {
 public:
  /// count > 0.
  Permutation(int64_t count, uint64_t seed, uint64_t stream);
  /// 0 <= index < count.
  int64_t operator()(int64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  int64_t count_;
  uint64_t seed_;
  uint64_t stream_;
  int low_bits_;
  int high_bits_;
};

}  // namespace headrace::model
