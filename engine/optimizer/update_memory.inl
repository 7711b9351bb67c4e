// How the arrays of a shard are read and written, for one instruction set. Included by
// update_pass.inl, once for every instruction set.

#include "engine/optimizer/update_convert.inl"

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// Elements of one round of the loop: one cache line of 16-bit values.
constexpr int64_t kGroup = 32;
/// How far ahead of the loop: nearer ones come too late, further ones are replaced before their
/// use.
constexpr int64_t kPrefetchBytes = 1024;

// Past the end of an array a prefetch does nothing.
HWY_INLINE void prefetch_f32(const void* array, int64_t i) {
  const auto* const at =
      static_cast<const float*>(array) + i + kPrefetchBytes / static_cast<int64_t>(sizeof(float));
  hwy::Prefetch(at);
  hwy::Prefetch(at + kGroup / 2);
}
HWY_INLINE void prefetch_words(const void* array, int64_t i) {
  hwy::Prefetch(static_cast<const uint16_t*>(array) + i +
                kPrefetchBytes / static_cast<int64_t>(sizeof(uint16_t)));
}

/// The gradient before its scale. Which arrays there are is the same in every round, so these
/// branches cost nothing, and each choice multiplied the code.
struct Gradient {
  static constexpr bool kIsBf16 = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const UpdateShard& s, int64_t i) {
    hn::Vec<D> gradient = load_stored(d, s, i);
    if (s.accumulated != nullptr) {
      gradient = hn::Add(hn::LoadU(d, s.accumulated + i), gradient);
    }
    return gradient;
  }

  /// Elements from i on, those with even and those with odd index.
  template <class D, class V>
  static HWY_INLINE void load_pair(D d, const UpdateShard& s, int64_t i, V& even, V& odd) {
    if (s.gradient_dtype == DType::bf16) {
      load_bf16_pair(d, s.gradient, i, even, odd);
    } else {
      const auto lanes = static_cast<int64_t>(hn::Lanes(d));
      take_apart(d, load_stored(d, s, i), load_stored(d, s, i + lanes), even, odd);
    }
    if (s.accumulated != nullptr) {
      const auto lanes = static_cast<int64_t>(hn::Lanes(d));
      V even_sum;
      V odd_sum;
      take_apart(d, hn::LoadU(d, s.accumulated + i), hn::LoadU(d, s.accumulated + i + lanes),
                 even_sum, odd_sum);
      even = hn::Add(even_sum, even);
      odd = hn::Add(odd_sum, odd);
    }
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
  template <class D, class V>
  static HWY_INLINE void take_apart(D d, V first, V second, V& even, V& odd) {
#if HWY_TARGET == HWY_SCALAR
    static_cast<void>(d);
    even = first;
    odd = second;
#else
    even = hn::ConcatEven(d, second, first);
    odd = hn::ConcatOdd(d, second, first);
#endif
  }

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

/// Gradient where it is bf16 and nothing is accumulated.
struct Bf16Gradient {
  static constexpr bool kIsBf16 = true;
  template <class D, class V>
  static HWY_INLINE void load_pair(D d, const UpdateShard& s, int64_t i, V& even, V& odd) {
    load_bf16_pair(d, s.gradient, i, even, odd);
  }
  static HWY_INLINE void prefetch(const UpdateShard& s, int64_t i) {
    prefetch_words(s.gradient, i);
  }
};

// Moments and masters with kPairs also load and store a pair of vectors, even and odd elements.

struct F32Moments {
  static constexpr bool kPairs = false;
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
  static constexpr bool kPairs = true;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* array, int64_t i) {
    return from_bf16(d, load_words(d, array, i));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, void* array, int64_t i) {
    store_words<false>(d, to_bf16_words(d, value), array, i);
  }
  template <class D, class V>
  static HWY_INLINE void load_pair(D d, const void* array, int64_t i, V& even, V& odd) {
    load_bf16_pair(d, array, i, even, odd);
  }
  template <class D, class V>
  static HWY_INLINE void store_pair(D d, V even, V odd, void* array, int64_t i) {
    const auto words = upper_halves(d, rounded_to_even(d, even), rounded_to_even(d, odd));
    store_pair_words(d, words, array, i);
  }
  static HWY_INLINE void prefetch(const void* array, int64_t i) { prefetch_words(array, i); }
};

/// The fp32 array, which is the weight itself.
struct PlainMaster {
  static constexpr bool kPairs = false;
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

/// No fp32: the bf16 weight is all there is.
struct WeightMaster {
  static constexpr bool kStreams = false;
  static constexpr bool kPairs = true;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const UpdateShard& s, int64_t i) {
    return from_bf16(d, load_words(d, s.weight, i));
  }
  template <bool kStream, class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, const UpdateShard& s, int64_t i) {
    store_words<false>(d, split_weight(d, value), s.weight, i);
  }
  static HWY_INLINE void prefetch(const UpdateShard& s, int64_t i) { prefetch_words(s.weight, i); }

  template <class D, class V>
  static HWY_INLINE void load_pair(D d, const UpdateShard& s, int64_t i, V& even, V& odd) {
    load_bf16_pair(d, s.weight, i, even, odd);
  }
  template <class D, class V>
  static HWY_INLINE void store_pair(D d, V even, V odd, const UpdateShard& s, int64_t i) {
    const hn::RebindToUnsigned<D> du;
    const auto half = hn::Set(du, 0x8000U);
    const auto words =
        upper_halves(d, hn::Add(hn::BitCast(du, even), half), hn::Add(hn::BitCast(du, odd), half));
    store_pair_words(d, words, s.weight, i);
  }
};

/// base/split_float.h's join() and split().
struct SplitMaster {
  static constexpr bool kPairs = true;
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

  template <class D, class V>
  static HWY_INLINE void load_pair(D d, const UpdateShard& s, int64_t i, V& even, V& odd) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, D> d16;
    const auto low = load_pair_words(d, s.master_low, i);
    const auto carried = hn::ShiftRight<15>(hn::BitCast(d16, low));
    const auto weight = hn::BitCast(d16, load_pair_words(d, s.weight, i));
    const auto high = hn::BitCast(du, hn::Sub(weight, carried));
    even = hn::BitCast(d, hn::Or(hn::ShiftLeft<16>(high), hn::And(low, hn::Set(du, 0xffffU))));
    odd = hn::BitCast(d, hn::Or(hn::And(high, hn::Set(du, 0xffff0000U)), hn::ShiftRight<16>(low)));
  }
  template <class D, class V>
  static HWY_INLINE void store_pair(D d, V even, V odd, const UpdateShard& s, int64_t i) {
    const hn::RebindToUnsigned<D> du;
    const auto even_bits = hn::BitCast(du, even);
    const auto odd_bits = hn::BitCast(du, odd);
    WeightMaster::store_pair(d, even, odd, s, i);
    const auto low = hn::Or(hn::And(even_bits, hn::Set(du, 0xffffU)), hn::ShiftLeft<16>(odd_bits));
    store_pair_words(d, low, s.master_low, i);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
