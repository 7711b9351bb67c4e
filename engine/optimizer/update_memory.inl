// How the arrays of a shard are read and written, for one instruction set. Included by
// update_pass.inl, once for every instruction set.

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
  const auto all =
      hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x0f800000U)), special, finite);
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

/// Elements of one round of the loop: one cache line of 16-bit values.
constexpr int64_t kGroup = 32;
/// Longer distances cost more than they hide.
constexpr int64_t kPrefetchElements = 256;

// Past the end of an array a prefetch does nothing.
HWY_INLINE void prefetch_f32(const void* array, int64_t i) {
  const auto* const at = static_cast<const float*>(array) + i + kPrefetchElements;
  hwy::Prefetch(at);
  hwy::Prefetch(at + kGroup / 2);
}
HWY_INLINE void prefetch_words(const void* array, int64_t i) {
  hwy::Prefetch(static_cast<const uint16_t*>(array) + i + kPrefetchElements);
}

/// The gradient before its scale. Which arrays there are is the same in every round, so these
/// branches cost nothing, and each choice multiplied the code.
struct Gradient {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const UpdateShard& s, int64_t i) {
    hn::Vec<D> gradient = load_stored(d, s, i);
    if (s.accumulated != nullptr) {
      gradient = hn::Add(hn::LoadU(d, s.accumulated + i), gradient);
    }
    return gradient;
  }

  static HWY_INLINE void prefetch(const UpdateShard& s, int64_t i) {
    if (s.gradient_dtype == DType::f32) {
      prefetch_f32(s.gradient, i);
    } else {
      prefetch_words(s.gradient, i);
    }
    if (s.accumulated != nullptr) {
      prefetch_f32(s.accumulated, i);
    }
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<D> load_stored(D d, const UpdateShard& s, int64_t i) {
    if (s.gradient_dtype == DType::f32) {
      return hn::LoadU(d, static_cast<const float*>(s.gradient) + i);
    }
    if (s.gradient_dtype == DType::bf16) {
      return from_bf16(d, load_words(d, s.gradient, i));
    }
    if constexpr (kConvertsF16) {
      const hn::Rebind<hwy::float16_t, D> d16;
      return hn::PromoteTo(d, hn::LoadU(d16, static_cast<const hwy::float16_t*>(s.gradient) + i));
    } else {
      return from_f16(d, load_words(d, s.gradient, i));
    }
  }
};

struct F32Moments {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* array, int64_t i) {
    return hn::LoadU(d, static_cast<const float*>(array) + i);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, void* array, int64_t i) {
    hn::StoreU(value, d, static_cast<float*>(array) + i);
  }
  static HWY_INLINE void prefetch(const void* array, int64_t i) { prefetch_f32(array, i); }
};

struct Bf16Moments {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* array, int64_t i) {
    return from_bf16(d, load_words(d, array, i));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, void* array, int64_t i) {
    store_words<false>(d, to_bf16_words(d, value), array, i);
  }
  static HWY_INLINE void prefetch(const void* array, int64_t i) { prefetch_words(array, i); }
};

/// The fp32 array, which is the weight itself.
struct PlainMaster {
  static constexpr bool kStreams = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const UpdateShard& s, int64_t i) {
    return hn::LoadU(d, s.master + i);
  }
  template <bool kStream, class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, const UpdateShard& s, int64_t i) {
    hn::StoreU(value, d, s.master + i);
  }
  static HWY_INLINE void prefetch(const UpdateShard& s, int64_t i) { prefetch_f32(s.master, i); }
};

/// The fp32 array and a bf16 weight that is only written, past the caches.
struct MasterAndBf16 : PlainMaster {
  static constexpr bool kStreams = true;
  template <bool kStream, class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, const UpdateShard& s, int64_t i) {
    PlainMaster::store<false>(d, value, s, i);
    store_words<kStream>(d, split_weight(d, value), s.weight, i);
  }
};

struct MasterAndF16 : PlainMaster {
  static constexpr bool kStreams = true;
  template <bool kStream, class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, const UpdateShard& s, int64_t i) {
    PlainMaster::store<false>(d, value, s, i);
    store_words<kStream>(d, to_f16_words(d, value), s.weight, i);
  }
};

/// base/split_float.h's join() and split().
struct SplitMaster {
  static constexpr bool kStreams = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const UpdateShard& s, int64_t i) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<int16_t, D> d16;
    const auto high = hn::ShiftLeft<16>(load_words(d, s.weight, i));
    // As a signed number `low` takes away what rounding carried into the weight.
    const auto* const low = reinterpret_cast<const int16_t*>(s.master_low) + i;
    const auto rest = hn::BitCast(du, hn::PromoteTo(di, hn::LoadU(d16, low)));
    return hn::BitCast(d, hn::Add(high, rest));
  }
  template <bool kStream, class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, const UpdateShard& s, int64_t i) {
    const hn::RebindToUnsigned<D> du;
    const auto is_number = hn::RebindMask(du, hn::Eq(value, value));
    store_words<false>(d, split_weight(d, value), s.weight, i);
    store_words<false>(d, hn::IfThenElseZero(is_number, hn::BitCast(du, value)), s.master_low, i);
  }
  static HWY_INLINE void prefetch(const UpdateShard& s, int64_t i) {
    prefetch_words(s.weight, i);
    prefetch_words(s.master_low, i);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
