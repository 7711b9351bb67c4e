#pragma once

#include <cstdint>

namespace headrace {

// 1 / x of a normal fp32 number without a division, the same bits on every machine:
//
//   seed = float(kReciprocalSeed - bits(x))              a subtraction of integers
//   rest = kReciprocalCentre - x * seed                  one rounding
//   1 / x = seed * (t[0] + rest * (t[1] + rest * (t[2] + rest * t[3])))
//
// Of all constants this seed makes x * seed vary least: by 1.5 % around the centre, because what it
// is multiplied with need not be 1 (the mantissa of the constant is sqrt(2) - 1). The polynomial
// interpolates 1 / (centre - rest) at Chebyshev's nodes of the 3 % that rest varies by. Without
// rounding the product is 1 / x within 2^-27. x below 2^126, so that the seed is normal too.

inline constexpr uint32_t kReciprocalSeed = 0x7f350481;
inline constexpr float kReciprocalCentre = 0x1.6f869ap+0F;
inline constexpr double kReciprocalTerms[] = {0.69654975845, 0.48518156901, 0.33802854919,
                                              0.23545374004};

}  // namespace headrace
