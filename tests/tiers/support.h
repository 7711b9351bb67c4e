#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/units.h"

namespace headrace::tiers::test {

/// 4096-aligned memory.
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : size_(static_cast<size_t>(size)),
        data_(static_cast<std::byte*>(
            std::aligned_alloc(4096, static_cast<size_t>(align_up(size + 1, int64_t{4096}))))) {}
  std::byte* data() const { return data_.get(); }
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

/// Bytes that depend on every bit of the seed and on the position.
inline void fill_pattern(std::span<std::byte> bytes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i % 8 == 0) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
    }
    bytes[i] = static_cast<std::byte>(state >> (i % 8 * 8));
  }
}

inline bool has_pattern(std::span<const std::byte> bytes, uint64_t seed) {
  std::vector<std::byte> expected(bytes.size());
  fill_pattern(expected, seed);
  return std::equal(bytes.begin(), bytes.end(), expected.begin());
}

/// The text of what `action` throws as an Error; empty if it throws nothing of type Error.
template <class Error, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace headrace::tiers::test
