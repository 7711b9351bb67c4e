#include <algorithm>
#include <atomic>

#include "base/parallel.h"
#include "engine/optimizer/kernel_targets.h"
#include "engine/optimizer/update_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optimizer/adam_kernel.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "base/exact_float.h"
#include "engine/optimizer/update_pass.inl"
#include "engine/optimizer/fused_adam.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// torch.optim.AdamW, or torch.optim.Adam where the decay goes into the gradient.
class AdamRule {
 public:
  static constexpr int kMoments = 2;
  static constexpr bool kHas8Bit = true;
  static constexpr bool kIsFused = false;

  explicit AdamRule(const AdamCoefficients& c) : c_(c) {}

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, V master, V gradient, V& exp_avg, V& exp_avg_sq) const {
    if (c_.decays_gradient) {
      gradient = hn::Add(gradient, hn::Mul(master, hn::Set(d, c_.weight_decay)));
    } else {
      master = hn::Mul(master, hn::Set(d, c_.keep));
    }
    exp_avg = hn::Add(hn::Mul(exp_avg, hn::Set(d, c_.beta1)),
                      hn::Mul(gradient, hn::Set(d, c_.one_minus_beta1)));
    exp_avg_sq = hn::Add(hn::Mul(exp_avg_sq, hn::Set(d, c_.beta2)),
                         hn::Mul(hn::Mul(gradient, hn::Set(d, c_.one_minus_beta2)), gradient));
    const auto root = hn::Mul(hn::Sqrt(exp_avg_sq), hn::Set(d, c_.inverse_correction2));
    const auto denominator = hn::Add(root, hn::Set(d, c_.eps));
    return hn::Sub(master, hn::Div(hn::Mul(exp_avg, hn::Set(d, c_.step_size)), denominator));
  }

 private:
  const AdamCoefficients c_;
};

bool adam_update_here(const AdamCoefficients& c, const PassOptions& options,
                      const UpdateShard& shard) {
  return choose_pass(AdamRule(c), options, shard);
}

bool fused_adam_update_here(const FusedAdamCoefficients& c, const PassOptions& options,
                            const UpdateShard& shard) {
  return choose_master<Bf16Moments>(FusedAdamRule(c), options, shard);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::engine {

HWY_EXPORT(adam_update_here);
HWY_EXPORT(fused_adam_update_here);

bool adam_update(const AdamCoefficients& c, const PassOptions& options, const UpdateShard& shard) {
  return HWY_DYNAMIC_DISPATCH(adam_update_here)(c, options, shard);
}

bool fused_adam_update(const FusedAdamCoefficients& c, const PassOptions& options,
                       const UpdateShard& shard) {
  return HWY_DYNAMIC_DISPATCH(fused_adam_update_here)(c, options, shard);
}

}  // namespace headrace::engine
#endif  // HWY_ONCE
