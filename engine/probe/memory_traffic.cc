#include "engine/probe/memory_traffic.h"

#include "engine/optimizer/kernel_targets.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/probe/memory_traffic.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "hwy/cache_control.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void add_to(float* array, int64_t i, hn::Vec<hn::ScalableTag<float>> value) {
  const hn::ScalableTag<float> d;
  hn::StoreU(hn::Add(hn::LoadU(d, array + i), value), d, array + i);
}

void pass_over_here(float* HWY_RESTRICT master, float* HWY_RESTRICT moment1,
                    float* HWY_RESTRICT moment2, const float* HWY_RESTRICT gradient,
                    int64_t count) {
  constexpr int64_t kLine = 16;    // elements of a cache line
  constexpr int64_t kAhead = 256;  // elements; past the end of an array a prefetch does nothing
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t line = 0; line < count; line += kLine) {
    for (const float* array :
         {static_cast<const float*>(master), static_cast<const float*>(moment1),
          static_cast<const float*>(moment2), gradient}) {
      hwy::Prefetch(array + line + kAhead);
    }
    for (int64_t i = line; i < line + kLine; i += lanes) {
      const auto value = hn::LoadU(d, gradient + i);
      add_to(master, i, value);
      add_to(moment1, i, value);
      add_to(moment2, i, value);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::engine {

HWY_EXPORT(pass_over_here);

void pass_over(float* master, float* moment1, float* moment2, const float* gradient,
               int64_t count) {
  HWY_DYNAMIC_DISPATCH(pass_over_here)(master, moment1, moment2, gradient, count);
}

}  // namespace headrace::engine
#endif  // HWY_ONCE
