// Adam with bf16 moments, for one instruction set. Included by adam_kernel.cc, once for every
// instruction set.

#include "base/reciprocal.h"
#include "engine/optimizer/fused.inl"

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// The formula of AdamRule with fused operations and without a division, which is what bounds that
/// one where memory is fast (docs/optimizers.md). Only with coefficients that are safe. apply() is
/// average(), then estimate(), then divide() where that is not finite.
class FusedAdamRule {
 public:
  static constexpr int kMoments = 2;
  static constexpr bool kHas8Bit = false;
  static constexpr bool kIsFused = true;

  explicit FusedAdamRule(const FusedAdamCoefficients& c) : c_(c) {}

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, V master, V gradient, V& exp_avg, V& exp_avg_sq) const {
    const V below = average(d, master, gradient, exp_avg, exp_avg_sq);
    const V estimated = estimate(d, master, exp_avg, below);
    if (HWY_LIKELY(hn::AllTrue(d, hn::IsFinite(estimated)))) {
      return estimated;
    }
    return divide(d, master, exp_avg, below, estimated);
  }

  /// The new moments; returns the denominator.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V average(D d, V master, V gradient, V& exp_avg, V& exp_avg_sq) const {
    if (c_.decays_gradient) {
      gradient = fused(d, master, hn::Set(d, c_.weight_decay),
                       hn::Mul(gradient, hn::Set(d, c_.gradient_scale)));
    }
    exp_avg = fused(d, gradient, hn::Set(d, c_.gradient1), hn::Mul(exp_avg, hn::Set(d, c_.beta1)));
    const V scaled = hn::Mul(gradient, hn::Set(d, c_.gradient2));
    exp_avg_sq = fused(d, scaled, scaled, hn::Mul(exp_avg_sq, hn::Set(d, c_.beta2)));
    return fused(d, hn::Sqrt(exp_avg_sq), hn::Set(d, c_.inverse_correction2), hn::Set(d, c_.eps));
  }

  /// The new master by base/reciprocal.h. The denominator is between 2^-60 and 2^125, or not
  /// finite; then what is returned is not finite either.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V estimate(D d, V master, V exp_avg, V below) const {
    const hn::RebindToUnsigned<D> du;
    const V seed = hn::BitCast(d, hn::Sub(hn::Set(du, kReciprocalSeed), hn::BitCast(du, below)));
    const V rest = fused_negative(d, below, seed, hn::Set(d, kReciprocalCentre));
    V quotient = fused(d, rest, hn::Set(d, c_.quotient[3]), hn::Set(d, c_.quotient[2]));
    quotient = fused(d, rest, quotient, hn::Set(d, c_.quotient[1]));
    quotient = fused(d, rest, quotient, hn::Set(d, c_.quotient[0]));
    return fused_negative(d, hn::Mul(exp_avg, seed), quotient, decayed(d, master));
  }

  /// The new master where the estimate is not finite: there the denominator, the first moment or
  /// the master is not, or the new one is too large.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V divide(D d, V master, V exp_avg, V below, V estimated) const {
    const V change = hn::Div(hn::Mul(exp_avg, hn::Set(d, c_.step_size)), below);
    return hn::IfThenElse(hn::IsFinite(estimated), estimated, hn::Sub(decayed(d, master), change));
  }

 private:
  /// keep is 1 where the gradient decays.
  template <class D, class V>
  HWY_INLINE V decayed(D d, V master) const {
    return hn::Mul(master, hn::Set(d, c_.keep));
  }

  const FusedAdamCoefficients c_;
};

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
