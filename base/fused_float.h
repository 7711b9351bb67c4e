#pragma once

#include <bit>
#include <cstdint>

namespace headrace {

/// a * b + c of fp32 with one rounding, as std::fma, for processors that have no instruction for
/// it: inline, where the library's is a call that may change the rounding mode. The sum in double
/// is rounded to odd; then the rounding to fp32 is that of the exact value (Boldo and Melquiond
/// 2008, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd").
constexpr float fused_multiply_add(float a, float b, float c) {
  const double product = static_cast<double>(a) * b;  // exact
  const double addend = c;
  const double sum = product + addend;
  const double added = sum - product;
  const double lost = (product - (sum - added)) + (addend - added);
  auto bits = std::bit_cast<uint64_t>(sum);
  if ((lost < 0 || lost > 0) && (bits & 1U) == 0) {
    // To the neighbour on the side of what was lost; an inexact sum is not 0.
    bits += (lost > 0) == (sum > 0) ? uint64_t{1} : ~uint64_t{0};
  }
  return static_cast<float>(std::bit_cast<double>(bits));
}

}  // namespace headrace
