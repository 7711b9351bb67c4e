#include <algorithm>
#include <atomic>

#include "base/parallel.h"
#include "engine/optimizer/kernel_targets.h"
#include "engine/optimizer/update_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optimizer/sgd_kernel.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "base/exact_float.h"
#include "engine/optimizer/update_pass.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// torch.optim.SGD.
template <bool kHasBuffer>
class SgdRule {
 public:
  static constexpr int kMoments = kHasBuffer ? 1 : 0;
  static constexpr bool kHas8Bit = kHasBuffer;
  static constexpr bool kIsFused = false;

  explicit SgdRule(const SgdCoefficients& c) : c_(c) {}

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, V master, V gradient, V& buffer, V& /*none*/) const {
    if (c_.weight_decay != 0) {
      gradient = hn::Add(gradient, hn::Mul(master, hn::Set(d, c_.weight_decay)));
    }
    if constexpr (kHasBuffer) {
      if (c_.is_first) {
        buffer = gradient;
      } else {
        buffer = hn::Add(hn::Mul(buffer, hn::Set(d, c_.momentum)),
                         hn::Mul(gradient, hn::Set(d, c_.one_minus_dampening)));
      }
      gradient = c_.nesterov ? hn::Add(gradient, hn::Mul(buffer, hn::Set(d, c_.momentum))) : buffer;
    }
    return hn::Sub(master, hn::Mul(gradient, hn::Set(d, c_.lr)));
  }

 private:
  const SgdCoefficients c_;
};

bool sgd_update_here(const SgdCoefficients& c, bool has_buffer, const PassOptions& options,
                     const UpdateShard& shard) {
  return has_buffer ? choose_pass(SgdRule<true>(c), options, shard)
                    : choose_pass(SgdRule<false>(c), options, shard);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::engine {

HWY_EXPORT(sgd_update_here);

bool sgd_update(const SgdCoefficients& c, bool has_buffer, const PassOptions& options,
                const UpdateShard& shard) {
  return HWY_DYNAMIC_DISPATCH(sgd_update_here)(c, has_buffer, options, shard);
}

}  // namespace headrace::engine
#endif  // HWY_ONCE
