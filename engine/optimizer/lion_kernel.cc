#include <algorithm>
#include <atomic>

#include "base/parallel.h"
#include "engine/optimizer/kernel_targets.h"
#include "engine/optimizer/update_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optimizer/lion_kernel.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "base/exact_float.h"
#include "engine/optimizer/update_pass.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
class LionRule {
 public:
  static constexpr int kMoments = 1;
  static constexpr bool kHas8Bit = true;
  static constexpr bool kIsFused = false;

  explicit LionRule(const LionCoefficients& c) : c_(c) {}

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, V master, V gradient, V& exp_avg, V& /*none*/) const {
    const auto direction = hn::Add(hn::Mul(exp_avg, hn::Set(d, c_.beta1)),
                                   hn::Mul(gradient, hn::Set(d, c_.one_minus_beta1)));
    exp_avg = hn::Add(hn::Mul(exp_avg, hn::Set(d, c_.beta2)),
                      hn::Mul(gradient, hn::Set(d, c_.one_minus_beta2)));
    // lr * sign(direction): a zero, and a NaN, stays what it is.
    const auto moves = hn::Gt(hn::Abs(direction), hn::Zero(d));
    const auto change =
        hn::IfThenElse(moves, hn::CopySign(hn::Set(d, c_.lr), direction), direction);
    return hn::Sub(hn::Mul(master, hn::Set(d, c_.keep)), change);
  }

 private:
  const LionCoefficients c_;
};

bool lion_update_here(const LionCoefficients& c, const PassOptions& options,
                      const UpdateShard& shard) {
  return choose_pass(LionRule(c), options, shard);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::engine {

HWY_EXPORT(lion_update_here);

bool lion_update(const LionCoefficients& c, const PassOptions& options, const UpdateShard& shard) {
  return HWY_DYNAMIC_DISPATCH(lion_update_here)(c, options, shard);
}

}  // namespace headrace::engine
#endif  // HWY_ONCE
