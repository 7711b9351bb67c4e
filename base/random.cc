#include "base/random.h"

#include <cmath>
#include <numbers>

namespace headrace {

std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t counter) {
  constexpr uint32_t kMul0 = 0xD2511F53U;
  constexpr uint32_t kMul1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr uint32_t kWeyl1 = 0xBB67AE85U;
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> x = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMul0) * x[0];
    const uint64_t product1 = static_cast<uint64_t>(kMul1) * x[2];
    x = {static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return x;
}

uint32_t Random::next_u32() {
  if (used_ == 4) {
    words_ = philox(seed_, stream_, counter_++);
    used_ = 0;
  }
  return words_[static_cast<size_t>(used_++)];
}

uint64_t Random::next_u64() {
  const uint64_t low = next_u32();
  return low | (static_cast<uint64_t>(next_u32()) << 32);
}

uint64_t Random::below(uint64_t bound) {
  // Lemire's multiplication method with rejection of the uneven rest.
  unsigned __int128 product = static_cast<unsigned __int128>(next_u64()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < threshold) {
      product = static_cast<unsigned __int128>(next_u64()) * bound;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

float Random::normal() {
  const float radius = std::sqrt(-2.0F * std::log(1.0F - uniform_from(next_u32())));
  return radius * std::cos(2.0F * std::numbers::pi_v<float> * uniform_from(next_u32()));
}

}  // namespace headrace
