// Pairs of vectors in two stages, for one instruction set. Included by update_pass.inl, once for
// every instruction set.

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// The pairs of a Rule that kIsFused, with bf16 moments and gradients. The chain of operations of
/// an element is so long that a processor cannot look far enough ahead to fill its ports; so each
/// turn begins a pair and ends the one before.
///
/// The roundings of a pair are for numbers, but right for NaNs whose lower half is 0: nothing is
/// carried out of these. Others do not come here: all inputs have 16 bits or are a split master,
/// and a NaN that a processor makes of numbers is such a one.
template <class Rule, class Master>
class StagedPairs {
 public:
  HWY_INLINE StagedPairs(const Rule& rule, const UpdateShard& shard) : rule_(rule), s_(shard) {}

  /// Elements [i, end), whole groups. Returns whether every new value is finite.
  template <class D>
  HWY_INLINE bool run(D d, int64_t i, int64_t end) const {
    if (i == end) {
      return true;
    }
    constexpr int64_t kPair = 2 * static_cast<int64_t>(hn::MaxLanes(D()));
    bool all_finite = true;
    prefetch(i);
    auto begun = begin(d, i);
    for (int64_t next = i + kPair; next < end; next += kPair) {
      if (kPair == kGroup || next % kGroup == 0) {
        prefetch(next);
      }
      const auto other = begin(d, next);
      all_finite &= finish(d, next - kPair, begun);
      begun = other;
    }
    all_finite &= finish(d, end - kPair, begun);
    return all_finite;
  }

 private:
  /// What finish() needs of a pair.
  template <class V>
  struct Begun {
    V even_moment;
    V odd_moment;
    V even_below;
    V odd_below;
  };

  HWY_INLINE void prefetch(int64_t i) const {
    Bf16Gradient::prefetch(s_, i);
    Master::prefetch(s_, i);
    Bf16Moments::prefetch(s_.moment1, i);
    Bf16Moments::prefetch(s_.moment2, i);
  }

  /// Updates the moments.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE Begun<V> begin(D d, int64_t i) const {
    V even_gradient;
    V odd_gradient;
    Bf16Gradient::load_pair(d, s_, i, even_gradient, odd_gradient);
    V even_master;
    V odd_master;
    Master::load_pair(d, s_, i, even_master, odd_master);
    V even1;
    V odd1;
    Bf16Moments::load_pair(d, s_.moment1, i, even1, odd1);
    V even2;
    V odd2;
    Bf16Moments::load_pair(d, s_.moment2, i, even2, odd2);
    const V even_below = rule_.average(d, even_master, even_gradient, even1, even2);
    const V odd_below = rule_.average(d, odd_master, odd_gradient, odd1, odd2);
    Bf16Moments::store_pair(d, even1, odd1, s_.moment1, i);
    Bf16Moments::store_pair(d, even2, odd2, s_.moment2, i);
    return {even1, odd1, even_below, odd_below};
  }

  /// Updates the master. Returns whether it and the moments are finite: a moment that is not shows
  /// in what is below the quotient, or in the quotient.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE bool finish(D d, int64_t i, const Begun<V>& begun) const {
    V even_master;
    V odd_master;
    Master::load_pair(d, s_, i, even_master, odd_master);
    V even = rule_.estimate(d, even_master, begun.even_moment, begun.even_below);
    V odd = rule_.estimate(d, odd_master, begun.odd_moment, begun.odd_below);
    bool all_finite = true;
    // What is not finite makes the sum so, and so may what is only large.
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::IsFinite(hn::Add(even, odd))))) {
      even = rule_.divide(d, even_master, begun.even_moment, begun.even_below, even);
      odd = rule_.divide(d, odd_master, begun.odd_moment, begun.odd_below, odd);
      FiniteCheck check(d);
      check.see(d, even);
      check.see(d, odd);
      check.see(d, begun.even_below);
      check.see(d, begun.odd_below);
      all_finite = check.all_finite();
    }
    Master::store_pair(d, even, odd, s_, i);
    return all_finite;
  }

  const Rule& rule_;
  const UpdateShard& s_;
};

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
