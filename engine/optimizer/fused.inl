// Multiplication and addition with one rounding, for one instruction set. Included by the source
// files of optimizers after Highway, once for every instruction set.

#include "base/fused_float.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// a * b + c. Instruction sets without it (before AVX2) compute it element by element.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  static_cast<void>(d);
  return hn::MulAdd(a, b, c);
#else
  constexpr size_t kLanes = hn::MaxLanes(D());
  HWY_ALIGN float values[3][kLanes];
  hn::Store(a, d, values[0]);
  hn::Store(b, d, values[1]);
  hn::Store(c, d, values[2]);
  for (size_t i = 0; i < kLanes; ++i) {
    values[0][i] = fused_multiply_add(values[0][i], values[1][i], values[2][i]);
  }
  return hn::Load(d, values[0]);
#endif
}

/// c - a * b.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused_negative(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  static_cast<void>(d);
  return hn::NegMulAdd(a, b, c);
#else
  return fused(d, hn::Neg(a), b, c);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
