// One pass of an optimizer over a shard with 8-bit moments, for one instruction set. Included by
// update_pass.inl, once for every instruction set.

#include "engine/optimizer/update_quantized.inl"

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// Names 8-bit moments where the others have F32Moments or Bf16Moments.
struct QuantizedMoments {};

template <class Rule, class Master, class Moments>
class Pass;

/// The pass over 8-bit moments. A Rule whose first moment has either sign and whose second is a
/// mean of squares. Works block by block: what a block's scale is shows when all of its moments are
/// new, so these wait in the L1 cache, and the arrays are gone through once.
template <class Rule, class Master>
class Pass<Rule, Master, QuantizedMoments> {
 public:
  HWY_INLINE Pass(const Rule& rule, const PassOptions& options, const UpdateShard& shard)
      : rule_(rule), options_(options), s_(shard) {}

  /// Updates elements [begin, end), of which `begin` is the first of a block. Returns whether every
  /// new value is finite.
  HWY_INLINE bool run(int64_t begin, int64_t end) const {
    const hn::ScalableTag<float> d;
    const hn::CappedTag<float, 1> one;
    FiniteCheck check(d);
    FiniteCheck check_one(one);
    bool all_finite = true;
    uint32_t upper_bits = upper_half(begin);
    RoundingKey key(options_.seed, options_.step, upper_bits);
    for (int64_t i = begin; i < end; i += kBlock) {
      if (upper_half(i) != upper_bits) {
        upper_bits = upper_half(i);
        key = RoundingKey(options_.seed, options_.step, upper_bits);
      }
      if (i + kBlock <= end) {
        all_finite &= update(d, i, kBlock, key, check);
      } else {
        all_finite &= update(one, i, end - i, key, check_one);
      }
    }
    // The streamed weights must be visible before the caller hands the shard to another thread.
    if constexpr (Master::kStreams) {
      hwy::FlushStream();
    }
    return all_finite && check.all_finite() && check_one.all_finite();
  }

 private:
  static constexpr int64_t kBlock = kMomentBlock.count();
  static_assert(kBlock % kGroup == 0 && Rule::kMoments >= 1);

  HWY_INLINE uint32_t upper_half(int64_t i) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(s_.first_element + i) >> 32U);
  }
  HWY_INLINE bool is_line_of_weights(int64_t i) const {
    const auto address = reinterpret_cast<uintptr_t>(static_cast<uint16_t*>(s_.weight) + i);
    return address % (static_cast<uintptr_t>(kGroup) * sizeof(uint16_t)) == 0;
  }

  /// Block of `count` elements at i, a whole number of vectors.
  template <class D>
  HWY_INLINE bool update(D d, int64_t i, int64_t count, const RoundingKey& key,
                         FiniteCheck<D>& check) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    MomentBlock<SignedMoment> first(s_.moment1, s_.scale1, i);
    MomentBlock<SquareMoment> second(Rule::kMoments > 1 ? s_.moment2 : s_.moment1,
                                     Rule::kMoments > 1 ? s_.scale2 : s_.scale1, i);
    prefetch(i);
    first.prefetch();
    if constexpr (Rule::kMoments > 1) {
      second.prefetch();
    }
    const bool streams = Master::kStreams && count == kBlock && is_line_of_weights(i);
    for (int64_t j = 0; j < count; j += lanes) {
      const auto gradient =
          hn::Mul(Gradient::load(d, s_, i + j), hn::Set(d, options_.gradient_scale));
      auto moment1 = first.load(d, j);
      auto moment2 = hn::Zero(d);
      if constexpr (Rule::kMoments > 1) {
        moment2 = second.load(d, j);
      }
      const auto master = rule_.apply(d, Master::load(d, s_, i + j), gradient, moment1, moment2);
      store_master(d, master, i + j, streams);
      check.see(d, master);
      first.keep(d, j, moment1);
      if constexpr (Rule::kMoments > 1) {
        second.keep(d, j, moment2);
      }
    }
    bool all_finite = first.rescale(d, count);
    if constexpr (Rule::kMoments > 1) {
      all_finite &= second.rescale(d, count);
    }
    const auto lower_bits = static_cast<uint32_t>(s_.first_element + i);
    for (int64_t j = 0; j < count; j += lanes) {
      const auto random = rounding_words(d, key, lower_bits + static_cast<uint32_t>(j));
      first.store(d, j, hn::And(random, hn::Set(hn::RebindToUnsigned<D>(), 0xffffU)));
      if constexpr (Rule::kMoments > 1) {
        second.store(d, j, hn::ShiftRight<16>(random));
      }
    }
    return all_finite;
  }

  template <class D>
  HWY_INLINE void store_master(D d, hn::Vec<D> master, int64_t i, bool streams) const {
    if constexpr (Master::kStreams) {
      if (streams) {
        Master::template store<true>(d, master, s_, i);
        return;
      }
    }
    Master::template store<false>(d, master, s_, i);
  }

  HWY_INLINE void prefetch(int64_t i) const {
    for (int64_t j = i; j < i + kBlock; j += kGroup) {
      Gradient::prefetch(s_, j);
      Master::prefetch(s_, j);
    }
  }

  const Rule rule_;
  const PassOptions options_;
  const UpdateShard s_;
};

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
