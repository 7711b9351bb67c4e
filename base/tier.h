#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace headrace {

/// The levels of memory, fastest first. `nvme` is file storage of any kind.
enum class Tier : uint8_t { device = 0, host = 1, nvme = 2 };
inline constexpr int kTierCount = 3;

constexpr std::string_view to_string(Tier tier) {
  constexpr std::array<std::string_view, kTierCount> kNames = {"device", "host", "nvme"};
  return kNames[static_cast<size_t>(tier)];
}

/// Dense index of an object: a named byte range, the unit of movement.
enum class ObjectId : uint32_t {};
constexpr uint32_t index_of(ObjectId id) {
  return static_cast<uint32_t>(id);
}

}  // namespace headrace
