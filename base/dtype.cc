#include "base/dtype.h"

#include "base/check.h"

namespace headrace {

Bytes size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return Bytes(4);
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return Bytes(2);
    case DType::i64:
      return Bytes(8);
    case DType::u8:
      return Bytes(1);
  }
  HR_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
}

Bytes bytes_for(Elements count, DType dtype) {
  return size_of(dtype) * count.count();
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
    case DType::u16:
      return "u16";
    case DType::u32:
      return "u32";
  }
  return "?";
}

float to_float(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  // Subnormal: mantissa * 2^-24, exact in fp32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

F16 to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return F16{static_cast<uint16_t>(sign | 0x7e00U)};
  }
  if (magnitude >= 0x477ff000U) {
    return F16{static_cast<uint16_t>(sign | 0x7c00U)};
  }
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 aligns the mantissa to units of 2^-24 and rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return F16{static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U))};
  }
  const uint32_t rounded = magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U);
  return F16{static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace headrace
