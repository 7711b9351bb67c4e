#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::model {

/// How much of a block its backward pass computes again; the rest has been saved by its forward
/// pass. The numbers are the same in every level.
enum class Recompute : uint8_t {
  none,   ///< cheap steps only: norms and the product of gate and up
  mlp,    ///< gate_proj and up_proj; the attention half is saved
  block,  ///< all but down_proj, from the block's input
};
inline constexpr size_t kRecomputeLevels = 3;

/// One value for each level.
template <class T>
struct PerLevel {
  std::array<T, kRecomputeLevels> values{};

  const T& operator[](Recompute level) const { return values[static_cast<size_t>(level)]; }
  T& operator[](Recompute level) { return values[static_cast<size_t>(level)]; }
};

/// What the forward pass of a block leaves to its backward pass.
struct SavedValues {
  Recompute level = Recompute::block;
  void* data = nullptr;  ///< device memory of Network::saved_bytes(level), 64-byte aligned
};

}  // namespace headrace::model
