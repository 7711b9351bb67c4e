// Conversions between fp32 and the 16-bit types, for one instruction set. Included by
// update_memory.inl, once for every instruction set.

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether Highway's own conversions of binary16 are exact: the others lose infinities.
constexpr bool kConvertsF16 = (HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86) || HWY_ARCH_ARM_A64;

/// The 16-bit words from element i of an array, in the low halves of the lanes.
template <class D>
HWY_INLINE auto load_words(D /*d*/, const void* array, int64_t i) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  return hn::PromoteTo(du, hn::LoadU(d16, static_cast<const uint16_t*>(array) + i));
}

/// Writes the low halves of the lanes.
template <bool kStream, class D, class V>
HWY_INLINE void store_words(D /*d*/, V words, void* array, int64_t i) {
  const hn::Rebind<uint16_t, D> d16;
  const auto narrow = hn::TruncateTo(d16, words);
  auto* const target = static_cast<uint16_t*>(array) + i;
  // Highway rounds streams of less than 16 bytes up.
  if constexpr (kStream && hn::MaxLanes(D()) * sizeof(uint16_t) >= 16) {
    hn::Stream(narrow, d16, target);
  } else {
    hn::StoreU(narrow, d16, target);
  }
}

template <class D>
HWY_INLINE auto from_bf16(D d, hn::Vec<hn::RebindToUnsigned<D>> words) {
  return hn::BitCast(d, hn::ShiftLeft<16>(words));
}

/// base/dtype.h's to_bf16: to nearest, ties to even.
template <class D>
HWY_INLINE auto to_bf16_words(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto high = hn::ShiftRight<16>(bits);
  const auto bias = hn::Add(hn::Set(du, 0x7fffU), hn::And(high, hn::Set(du, 1U)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, bias));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));
  static_cast<void>(d);
  return hn::IfThenElse(is_nan, hn::Or(high, hn::Set(du, 0x40U)), rounded);
}

/// The weight of base/split_float.h's split(): to nearest, ties away from zero.
template <class D>
HWY_INLINE auto split_weight(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Set(du, 0x8000U)));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40U));
  static_cast<void>(d);
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), nan, rounded);
}

/// base/dtype.h's to_float(F16).
template <class D>
HWY_INLINE auto from_f16(D d, hn::Vec<hn::RebindToUnsigned<D>> words) {
  const hn::RebindToUnsigned<D> du;
  const auto magnitude = hn::ShiftLeft<13>(hn::And(words, hn::Set(du, 0x7fffU)));
  const auto exponent = hn::And(magnitude, hn::Set(du, 0x0f800000U));
  const auto normal = hn::Add(magnitude, hn::Set(du, 112U << 23U));
  // Below 2^-14: 2^-14 (1 + mantissa), less 2^-14.
  const auto above = hn::BitCast(d, hn::Or(magnitude, hn::Set(du, 0x38800000U)));
  const auto subnormal = hn::BitCast(du, hn::Sub(above, hn::Set(d, 0x1p-14F)));
  const auto special = hn::Or(magnitude, hn::Set(du, 0x7f800000U));
  const auto finite = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), subnormal, normal);
  const auto all = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x0f800000U)), special, finite);
  const auto sign = hn::ShiftLeft<16>(hn::And(words, hn::Set(du, 0x8000U)));
  return hn::BitCast(d, hn::Or(all, sign));
}

/// base/dtype.h's to_f16: to nearest, ties to even.
template <class D>
HWY_INLINE auto to_f16_words(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffU));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto above = [&](int32_t limit) HWY_ATTR {
    return hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, limit)));
  };
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  // 0xc8000fff = 0xfff - (112 << 23): the change of exponent bias and half a unit, less one.
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xc8000fffU)), odd));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000U));
  const auto finite = hn::IfThenElse(above(0x387fffff), normal, subnormal);
  const auto or_infinity = hn::IfThenElse(above(0x477fefff), hn::Set(du, 0x7c00U), finite);
  const auto or_nan = hn::IfThenElse(above(0x7f800000), hn::Set(du, 0x7e00U), or_infinity);
  return hn::Or(or_nan, hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U)));
}

// Pairs of vectors: a vector of 32-bit words holds two 16-bit values a lane, those with even and
// those with odd index. Taking them apart so is one shift and one mask, and putting them together a
// shift and a blend; in the order of the array both would need permutations. These functions do not
// look after NaNs.

/// The 16-bit values from element i on, two a lane.
template <class D>
HWY_INLINE auto load_pair_words(D /*d*/, const void* array, int64_t i) {
  const hn::Repartition<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(du, hn::LoadU(d16, static_cast<const uint16_t*>(array) + i));
}
template <class D, class VU>
HWY_INLINE void store_pair_words(D /*d*/, VU words, void* array, int64_t i) {
  const hn::Repartition<uint16_t, D> d16;
  hn::StoreU(hn::BitCast(d16, words), d16, static_cast<uint16_t*>(array) + i);
}

/// The upper halves of both vectors as words.
template <class D, class VU>
HWY_INLINE auto upper_halves(D /*d*/, VU even, VU odd) {
  const hn::RebindToUnsigned<D> du;
  return hn::Or(hn::ShiftRight<16>(even), hn::And(odd, hn::Set(du, 0xffff0000U)));
}

/// bits of x that carry into the upper half where base/dtype.h's to_bf16 rounds up: a last bit that
/// is set makes a tie a little more than one.
template <class D>
HWY_INLINE auto rounded_to_even(D /*d*/, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  return hn::Add(hn::Or(bits, last), hn::Set(du, 0x7fffU));
}

template <class D, class V>
HWY_INLINE void load_bf16_pair(D d, const void* array, int64_t i, V& even, V& odd) {
  const hn::RebindToUnsigned<D> du;
  const auto words = load_pair_words(d, array, i);
  even = hn::BitCast(d, hn::ShiftLeft<16>(words));
  odd = hn::BitCast(d, hn::And(words, hn::Set(du, 0xffff0000U)));
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
