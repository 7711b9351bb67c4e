// One pass of an optimizer over a shard, for one instruction set. Included by the source file of
// each optimizer after Highway and base/exact_float.h, once for every instruction set.

// The order of these includes matters.
// clang-format off
#include "engine/optimizer/update_memory.inl"
#include "engine/optimizer/finite_check.inl"
#include "engine/optimizer/staged_pairs.inl"
#include "engine/optimizer/quantized_pass.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// A Rule has kMoments and the arithmetic of one vector:
///   Vec<D> apply(D, Vec<D> master, Vec<D> gradient, Vec<D>& moment1, Vec<D>& moment2) const
/// which returns the new master; moments that it does not have are zero and are not stored. A
/// moment may become infinite while the master stays finite, so both are checked.
///
/// A Rule that kIsFused scales the gradient itself, and has its apply() in parts (fused_adam.inl).
template <class Rule, class Master, class Moments>
class Pass {
 public:
  HWY_INLINE Pass(const Rule& rule, const PassOptions& options, const UpdateShard& shard)
      : rule_(rule), gradient_scale_(options.gradient_scale), s_(shard) {}

  /// Updates elements [begin, end): up to a whole line of streamed weights, then by groups, then
  /// the rest. Returns whether every new value is finite.
  HWY_INLINE bool run(int64_t begin, int64_t end) const {
    // A copy that no store can change, so that its numbers stay in registers.
    const Pass here = *this;
    if constexpr (kPairs) {  // a gradient of a known type leaves more of them
      if (s_.gradient_dtype == DType::bf16 && s_.accumulated == nullptr) {
        return here.template run_with<Bf16Gradient>(begin, end);
      }
    }
    return here.template run_with<Gradient>(begin, end);
  }

 private:
  template <class G>
  HWY_INLINE bool run_with(int64_t begin, int64_t end) const {
    const hn::ScalableTag<float> d;
    const int64_t first = std::min(end, begin + unaligned_elements(begin));
    const int64_t last = first + (end - first) / kGroup * kGroup;
    bool all_finite = run_rest(begin, first);
    if constexpr (kPairs && Rule::kIsFused && G::kIsBf16) {
      all_finite &= StagedPairs<Rule, Master>(rule_, s_).run(d, first, last);
    } else {
      all_finite &= run_groups<G>(d, first, last);
    }
    all_finite &= run_rest(last, end);
    // The streamed weights must be visible before the caller hands the shard to another thread.
    if constexpr (Master::kStreams) {
      hwy::FlushStream();
    }
    return all_finite;
  }

  template <class G, class D>
  HWY_INLINE bool run_groups(D d, int64_t begin, int64_t end) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    FiniteCheck check(d);
    bool pairs_finite = true;
    for (int64_t i = begin; i < end; i += kGroup) {
      prefetch<G>(i);
      if constexpr (kPairs) {
        for (int64_t j = i; j < i + kGroup; j += 2 * lanes) {
          pairs_finite &= update_pair<G>(d, j);
        }
      } else {
        for (int64_t j = i; j < i + kGroup; j += lanes) {
          update<true>(d, j, check);
        }
      }
    }
    return pairs_finite && check.all_finite();
  }

  /// Where every array can be read in pairs of vectors. A single lane makes no pair.
  static constexpr bool kPairs =
      Master::kPairs && (Moments::kPairs || Rule::kMoments == 0) && HWY_TARGET != HWY_SCALAR;

  /// Elements from i to the next cache line of the weights that are streamed.
  HWY_INLINE int64_t unaligned_elements(int64_t i) const {
    if constexpr (Master::kStreams) {
      constexpr auto kLine = static_cast<uintptr_t>(kGroup) * sizeof(uint16_t);
      const auto address = reinterpret_cast<uintptr_t>(static_cast<uint16_t*>(s_.weight) + i);
      return static_cast<int64_t>((kLine - address % kLine) % kLine / sizeof(uint16_t));
    } else {
      return 0;
    }
  }

  /// Fewer than a group.
  HWY_INLINE bool run_rest(int64_t i, int64_t end) const {
    const hn::CappedTag<float, 1> one;
    FiniteCheck check(one);
    for (; i < end; ++i) {
      update<false>(one, i, check);
    }
    return check.all_finite();
  }

  template <class G>
  HWY_INLINE void prefetch(int64_t i) const {
    G::prefetch(s_, i);
    Master::prefetch(s_, i);
    if constexpr (Rule::kMoments > 0) {
      Moments::prefetch(s_.moment1, i);
    }
    if constexpr (Rule::kMoments > 1) {
      Moments::prefetch(s_.moment2, i);
    }
  }

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V scaled(D d, V gradient) const {
    return Rule::kIsFused ? gradient : hn::Mul(gradient, hn::Set(d, gradient_scale_));
  }
  template <bool kStream, class D>
  HWY_INLINE void update(D d, int64_t i, FiniteCheck<D>& check) const {
    const auto gradient = scaled(d, Gradient::load(d, s_, i));
    auto moment1 = hn::Zero(d);
    auto moment2 = hn::Zero(d);
    if constexpr (Rule::kMoments > 0) {
      moment1 = Moments::load(d, s_.moment1, i);
    }
    if constexpr (Rule::kMoments > 1) {
      moment2 = Moments::load(d, s_.moment2, i);
    }
    const auto master = rule_.apply(d, Master::load(d, s_, i), gradient, moment1, moment2);
    Master::template store<kStream>(d, master, s_, i);
    check.see(d, master);
    if constexpr (Rule::kMoments > 0) {
      Moments::store(d, moment1, s_.moment1, i);
    }
    if constexpr (Rule::kMoments > 1) {
      Moments::store(d, moment2, s_.moment2, i);
    }
    // The last moment takes in the gradient; an infinite first of two shows in the second.
    if constexpr (Rule::kMoments > 0) {
      check.see(d, Rule::kMoments > 1 ? moment2 : moment1);
    }
  }

  /// Two vectors of elements at once, those with even and those with odd index. The roundings of a
  /// pair are for numbers only, so a value that may not be finite sends both through update().
  /// Returns whether every new value is finite.
  template <class G, class D>
  HWY_INLINE bool update_pair(D d, int64_t i) const {
    using V = hn::Vec<D>;
    V even_master;
    V odd_master;
    Master::load_pair(d, s_, i, even_master, odd_master);
    V even_gradient;
    V odd_gradient;
    G::load_pair(d, s_, i, even_gradient, odd_gradient);
    V even1 = hn::Zero(d);
    V odd1 = even1;
    V even2 = even1;
    V odd2 = even1;
    if constexpr (Rule::kMoments > 0) {
      Moments::load_pair(d, s_.moment1, i, even1, odd1);
    }
    if constexpr (Rule::kMoments > 1) {
      Moments::load_pair(d, s_.moment2, i, even2, odd2);
    }
    even_master = rule_.apply(d, even_master, scaled(d, even_gradient), even1, even2);
    odd_master = rule_.apply(d, odd_master, scaled(d, odd_gradient), odd1, odd2);
    // What is not finite makes the sum so, and so may what is only large.
    V sum = hn::Add(even_master, odd_master);
    if constexpr (Rule::kMoments > 0) {
      sum = hn::Add(sum, Rule::kMoments > 1 ? hn::Add(even2, odd2) : hn::Add(even1, odd1));
    }
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::IsFinite(sum)))) {
      FiniteCheck check(d);
      update<true>(d, i, check);
      update<true>(d, i + static_cast<int64_t>(hn::Lanes(d)), check);
      return check.all_finite();
    }
    Master::store_pair(d, even_master, odd_master, s_, i);
    if constexpr (Rule::kMoments > 0) {
      Moments::store_pair(d, even1, odd1, s_.moment1, i);
    }
    if constexpr (Rule::kMoments > 1) {
      Moments::store_pair(d, even2, odd2, s_.moment2, i);
    }
    return true;
  }

  const Rule rule_;
  const float gradient_scale_;
  const UpdateShard s_;
};

/// Elements that one thread updates at a time.
constexpr int64_t kUpdateBlock = int64_t{1} << 16;

template <class Rule, class Master, class Moments>
HWY_NOINLINE bool run_pass(const Rule& rule, const PassOptions& options, const UpdateShard& shard) {
  std::atomic<bool> all_finite = true;
  const Pass<Rule, Master, Moments> pass(rule, options, shard);
  parallel_for_free_blocks(shard.count.count(), kUpdateBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    if (!pass.run(begin, end)) {
      all_finite.store(false, std::memory_order_relaxed);
    }
  });
  return all_finite.load(std::memory_order_relaxed);
}

template <class Moments, class Rule>
bool choose_master(const Rule& rule, const PassOptions& options, const UpdateShard& shard) {
  if (shard.weight_is_master) {
    return run_pass<Rule, WeightMaster, Moments>(rule, options, shard);
  }
  if (shard.master == nullptr) {
    return run_pass<Rule, SplitMaster, Moments>(rule, options, shard);
  }
  if (shard.weight == nullptr) {
    return run_pass<Rule, PlainMaster, Moments>(rule, options, shard);
  }
  if (shard.weight_dtype == DType::bf16) {
    return run_pass<Rule, MasterAndBf16, Moments>(rule, options, shard);
  }
  return run_pass<Rule, MasterAndF16, Moments>(rule, options, shard);
}

template <class Rule>
bool choose_pass(const Rule& rule, const PassOptions& options, const UpdateShard& shard) {
  if (Rule::kMoments == 0 || shard.moment_dtype == DType::f32) {
    return choose_master<F32Moments>(rule, options, shard);
  }
  if constexpr (Rule::kHas8Bit) {
    if (shard.moment_dtype == DType::u8) {
      return choose_master<QuantizedMoments>(rule, options, shard);
    }
  }
  if constexpr (Rule::kMoments > 0) {
    return choose_master<Bf16Moments>(rule, options, shard);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
