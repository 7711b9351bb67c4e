#include <algorithm>
#include <atomic>

#include "device/cpu/row_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/row_kernels_optimizer.cc"
#include "device/cpu/row_kernels_targets.h"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "device/cpu/row_kernels_block.h"
#include "device/cpu/row_kernels_common.h"
#include "device/kernels/elementwise.inl.h"
#include "device/kernels/optimizer.inl.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

struct Target;

/// Elements that are taken into arrays on the stack at a time.
constexpr int kPiece = 256;

bool optimizer_update_here(const OptimizerStep& step, const OptimizerArrays& arrays) {
  std::atomic<bool> all_finite = true;
  parallel_for_blocks(arrays.count, kElementsPerBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    bool is_finite = true;
    int64_t at = begin;
    for (; at + kPiece <= end; at += kPiece) {
      is_finite &= kernels::update_elements<kPiece>(kernels::ElementAccess(), step, arrays, at);
    }
    for (; at < end; ++at) {
      is_finite &= kernels::update_elements<1>(kernels::ElementAccess(), step, arrays, at);
    }
    if (!is_finite) {
      all_finite.store(false, std::memory_order_relaxed);
    }
  });
  return all_finite.load(std::memory_order_relaxed);
}

void gradient_statistics_here(const void* gradient, DType dtype, int64_t count, double* sums) {
  with_float_type(dtype, [&](auto type) {
    const auto* const values = static_cast<const decltype(type)*>(gradient);
    constexpr int64_t kBlock = kStatisticsBlock.count();
    parallel_for_blocks(count, kBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
      sums[begin / kBlock] =
          kernels::sum_of_squares(SerialBlock<Target>(), values + begin, end - begin);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

HWY_EXPORT(optimizer_update_here);
HWY_EXPORT(gradient_statistics_here);

bool optimizer_update(const OptimizerStep& step, const OptimizerArrays& arrays) {
  return HWY_DYNAMIC_DISPATCH(optimizer_update_here)(step, arrays);
}

void gradient_statistics(const void* gradient, DType dtype, Elements count, double* sums) {
  HWY_DYNAMIC_DISPATCH(gradient_statistics_here)(gradient, dtype, count.count(), sums);
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
