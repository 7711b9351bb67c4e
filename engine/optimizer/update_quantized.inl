// Decoding and encoding of 8-bit moments (moment_codes.h), for one instruction set. Included by
// quantized_pass.inl, once for every instruction set.

#include "engine/optimizer/moment_codes.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// As RoundingKey says, of the elements from the one whose number ends in `lower_bits`.
template <class D>
HWY_INLINE auto rounding_words(D /*d*/, const RoundingKey& key, uint32_t lower_bits) {
  const hn::RebindToUnsigned<D> du;
  // Highway makes an Iota that begins with a variable in memory.
  auto x = hn::Add(hn::Iota(du, 0), hn::Set(du, lower_bits + key.added));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x85ebca6bU));
  x = hn::Xor(x, hn::Set(du, key.mixed));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(du, 0xc2b2ae35U));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

/// Values of a block to words of a code, one in each lane, and back. Without a sign they are not
/// negative.
template <class Code>
struct Codec {
  static constexpr int kShift = static_cast<int>(Code::kCode.cut_bits());
  static constexpr uint32_t kBias = Code::kCode.bias();

  template <class D, class DU = hn::RebindToUnsigned<D>>
  static HWY_INLINE hn::Vec<D> decode(D d, hn::Vec<DU> words, hn::Vec<D> step) {
    const DU du;
    auto bits = words;
    if constexpr (Code::kCode.has_sign) {
      bits = hn::And(words, hn::Set(du, 0x7fU));
    }
    const auto normal = hn::BitCast(d, hn::ShiftLeft<kShift>(hn::Add(bits, hn::Set(du, kBias))));
    const auto subnormal = hn::ConvertTo(d, hn::BitCast(hn::RebindToSigned<D>(), bits));
    const auto is_subnormal = hn::Lt(subnormal, hn::Set(d, static_cast<float>(kSmallestNormal)));
    auto value = hn::Mul(hn::IfThenElse(is_subnormal, subnormal, normal), step);
    if constexpr (Code::kCode.has_sign) {
      const auto sign = hn::ShiftLeft<24>(hn::And(words, hn::Set(du, 0x80U)));
      value = hn::Or(value, hn::BitCast(d, sign));
    }
    return value;
  }

  /// `random`: 16 bits a lane. Up with the probability of what is cut off, to 2^-16.
  template <class D, class DU = hn::RebindToUnsigned<D>>
  static HWY_INLINE hn::Vec<DU> encode(D d, hn::Vec<D> value, hn::Vec<D> inverse_step,
                                       hn::Vec<DU> random) {
    const DU du;
    auto steps = hn::Mul(Code::kCode.has_sign ? hn::Abs(value) : value, inverse_step);
    // A smallest normal number added gives subnormals the spacing that they have in the code.
    const auto is_subnormal = hn::Lt(steps, hn::Set(d, static_cast<float>(kSmallestNormal)));
    steps = hn::Add(
        steps, hn::IfThenElseZero(is_subnormal, hn::Set(d, static_cast<float>(kSmallestNormal))));
    const auto added =
        hn::IfThenElseZero(hn::RebindMask(du, is_subnormal), hn::Set(du, kSmallestNormal));
    const auto drawn = hn::Add(hn::BitCast(du, steps), hn::ShiftLeft<kShift - 16>(random));
    auto words = hn::Sub(hn::ShiftRight<kShift>(drawn), hn::Add(added, hn::Set(du, kBias)));
    if constexpr (Code::kCode.keeps_above_zero) {
      words = hn::Max(words, hn::Min(hn::BitCast(du, value), hn::Set(du, 1U)));
    }
    if constexpr (Code::kCode.has_sign) {
      const auto bits = hn::BitCast(du, value);
      words = hn::Or(words, hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80U)));
    }
    return words;
  }

 private:
  static constexpr uint32_t kSmallestNormal = Code::kCode.smallest_normal();
};

struct SignedMoment {
  static constexpr MomentCode kCode = kSignedMoment;
};
struct SquareMoment {
  static constexpr MomentCode kCode = kSquareMoment;
};

/// A block of one array of moments: decoded on the way in, encoded when all of it is new.
template <class Code>
class MomentBlock {
 public:
  /// Of the block that begins at element i.
  HWY_INLINE MomentBlock(void* words, uint8_t* scales, int64_t i)
      : words_(static_cast<uint8_t*>(words) + i), scale_(scales + i / kMomentBlock.count()) {
    step_ = step_of(Code::kCode, *scale_);
  }

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, int64_t j) const {
    const hn::Rebind<uint8_t, D> d8;
    const hn::RebindToUnsigned<D> du;
    return Codec<Code>::decode(d, hn::PromoteTo(du, hn::LoadU(d8, words_ + j)), hn::Set(d, step_));
  }
  template <class D>
  HWY_INLINE void keep(D d, int64_t j, hn::Vec<D> value) {
    hn::StoreU(value, d, values_ + j);
  }

  /// Chooses the scale of the first `count` values kept. Returns whether all of them are finite.
  template <class D>
  HWY_INLINE bool rescale(D d, int64_t count) {
    const hn::RebindToSigned<D> di;
    auto largest = hn::Zero(di);
    for (int64_t j = 0; j < count; j += static_cast<int64_t>(hn::Lanes(d))) {
      const auto bits = hn::BitCast(di, hn::LoadU(d, values_ + j));
      largest = hn::Max(largest, hn::And(bits, hn::Set(di, 0x7fffffff)));
    }
    const auto bits = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
    const uint32_t scale = scale_for(Code::kCode, bits);
    *scale_ = static_cast<uint8_t>(scale);
    inverse_step_ = inverse_step_of(Code::kCode, scale);
    return scale != kScaleNotFinite;
  }
  template <class D, class VU>
  HWY_INLINE void store(D d, int64_t j, VU random) const {
    const hn::Rebind<uint8_t, D> d8;
    const auto words =
        Codec<Code>::encode(d, hn::LoadU(d, values_ + j), hn::Set(d, inverse_step_), random);
    hn::StoreU(hn::TruncateTo(d8, words), d8, words_ + j);
  }
  HWY_INLINE void prefetch() const { hwy::Prefetch(words_ + kPrefetchBytes); }

 private:
  uint8_t* words_;
  uint8_t* scale_;
  float step_;
  float inverse_step_ = 0;
  HWY_ALIGN float values_[kMomentBlock.count()];
};

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
