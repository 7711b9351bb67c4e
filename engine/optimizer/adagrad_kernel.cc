#include <algorithm>
#include <atomic>

#include "base/parallel.h"
#include "engine/optimizer/kernel_targets.h"
#include "engine/optimizer/update_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optimizer/adagrad_kernel.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "base/exact_float.h"
#include "engine/optimizer/update_pass.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// torch.optim.Adagrad.
class AdagradRule {
 public:
  static constexpr int kMoments = 1;
  static constexpr bool kHas8Bit = false;
  static constexpr bool kIsFused = false;

  explicit AdagradRule(const AdagradCoefficients& c) : c_(c) {}

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, V master, V gradient, V& sum, V& /*none*/) const {
    if (c_.weight_decay != 0) {
      gradient = hn::Add(gradient, hn::Mul(master, hn::Set(d, c_.weight_decay)));
    }
    sum = hn::Add(sum, hn::Mul(gradient, gradient));
    const auto denominator = hn::Add(hn::Sqrt(sum), hn::Set(d, c_.eps));
    return hn::Sub(master, hn::Div(hn::Mul(gradient, hn::Set(d, c_.step_size)), denominator));
  }

 private:
  const AdagradCoefficients c_;
};

bool adagrad_update_here(const AdagradCoefficients& c, const PassOptions& options,
                         const UpdateShard& shard) {
  return choose_pass(AdagradRule(c), options, shard);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::engine {

HWY_EXPORT(adagrad_update_here);

bool adagrad_update(const AdagradCoefficients& c, const PassOptions& options,
                    const UpdateShard& shard) {
  return HWY_DYNAMIC_DISPATCH(adagrad_update_here)(c, options, shard);
}

}  // namespace headrace::engine
#endif  // HWY_ONCE
