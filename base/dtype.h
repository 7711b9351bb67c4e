#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/units.h"

namespace headrace {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8, u16, u32 };

/// Bytes of one element.
Bytes size_of(DType dtype);
/// Bytes of `count` elements; checked.
Bytes bytes_for(Elements count, DType dtype);
/// "f32", "bf16", ...
std::string_view to_string(DType dtype);

/// Storage of a bfloat16 value; conversions round to nearest even and keep NaN a NaN.
struct Bf16 {
  uint16_t bits = 0;
};
/// Storage of an IEEE binary16 value.
struct F16 {
  uint16_t bits = 0;
};
static_assert(sizeof(Bf16) == 2 && sizeof(F16) == 2);

inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return Bf16{static_cast<uint16_t>((bits >> 16) | 0x40U)};
  }
  return Bf16{static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}
float to_float(F16 value);
F16 to_f16(float value);

/// The f32, bf16 or f16 number that lies there, wherever that is.
inline float load_float(const std::byte* from, DType dtype) {
  const auto load = [&](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::bf16:
      return to_float(load(Bf16{}));
    case DType::f16:
      return to_float(load(F16{}));
    default:
      return load(float{});
  }
}
/// The other way; rounds to nearest even.
inline void store_float(float value, std::byte* to, DType dtype) {
  const auto store = [&](auto stored) { std::memcpy(to, &stored, sizeof(stored)); };
  switch (dtype) {
    case DType::bf16:
      return store(to_bf16(value));
    case DType::f16:
      return store(to_f16(value));
    default:
      return store(value);
  }
}

}  // namespace headrace
