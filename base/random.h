#pragma once

#include <array>
#include <cstdint>

namespace headrace {

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four
/// random words that are a pure function of (seed, stream, counter). Resumable by construction.
std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t counter);

/// Uniform in [0, 1) from 24 bits of a random word.
inline float uniform_from(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

/// Sequential generator over one Philox stream. Not thread-safe; make one per stream.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  uint32_t next_u32();
  uint64_t next_u64();
  /// Uniform in [0, bound), without modulo bias; bound > 0.
  uint64_t below(uint64_t bound);
  /// Standard normal (Box-Muller).
  float normal();

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t counter_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace headrace
