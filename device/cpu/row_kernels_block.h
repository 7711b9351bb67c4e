#pragma once

#include <algorithm>
#include <cstdint>

#include "device/kernels/convert.inl.h"

namespace headrace::device::cpu {

/// The block context of a CPU thread: what a kernel body may ask of its "thread block". Loops are
/// plain ones, always inlined, that the compiler vectorises for the instruction set of the function
/// that uses them; Target, a type of that function's namespace, keeps the instantiations apart.
/// Reductions add element i into lane i % kLanes and then halve the lanes, so their order depends
/// on the length alone.
template <class Target>
class SerialBlock {
 public:
  /// f(i) for i in [0, n), in any order: iterations must not depend on each other.
  template <class F>
  HR_KERNEL void for_each(int64_t n, const F& f) const {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }

  /// f(row, column) for all pairs, in any order.
  template <class F>
  HR_KERNEL void for_each_2d(int64_t rows, int64_t columns, const F& f) const {
    for (int64_t row = 0; row < rows; ++row) {
      for_each(columns, [&](int64_t column) HR_KERNEL_LAMBDA { f(row, column); });
    }
  }

  /// Sum of f(i) in fp32.
  template <class F>
  HR_KERNEL float reduce_sum(int64_t n, const F& f) const {
    return reduce<float>(n, 0.0F, f, [](float a, float b) HR_KERNEL_LAMBDA { return a + b; });
  }

  /// Sum of f(i) in fp64.
  template <class F>
  HR_KERNEL double reduce_sum_f64(int64_t n, const F& f) const {
    return reduce<double>(n, 0.0, f, [](double a, double b) HR_KERNEL_LAMBDA { return a + b; });
  }

  /// Largest f(i), -inf for none; a NaN may be dropped.
  template <class F>
  HR_KERNEL float reduce_max(int64_t n, const F& f) const {
    return reduce<float>(n, -__builtin_huge_valf(), f,
                         [](float a, float b) HR_KERNEL_LAMBDA { return a > b ? a : b; });
  }

 private:
  static constexpr int64_t kLanes = 64;
  static constexpr int64_t kTile = 4 * kLanes;

  /// The values of a tile go to the stack first: f and the combination each vectorise by
  /// themselves.
  template <class V, class F, class Combine>
  HR_KERNEL V reduce(int64_t n, V identity, const F& f, const Combine& combine) const {
    alignas(64) V lanes[kLanes];
    alignas(64) V tile[kTile];
    for (V& lane : lanes) {
      lane = identity;
    }
    for (int64_t begin = 0; begin < n; begin += kTile) {
      const int64_t count = std::min(kTile, n - begin);
      for_each(count, [&](int64_t i) HR_KERNEL_LAMBDA { tile[i] = f(begin + i); });
      const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
      for (int64_t i = count; i < padded; ++i) {
        tile[i] = identity;
      }
      for (int64_t i = 0; i < padded; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          lanes[lane] = combine(lanes[lane], tile[i + lane]);
        }
      }
    }
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t lane = 0; lane < width; ++lane) {
        lanes[lane] = combine(lanes[lane], lanes[lane + width]);
      }
    }
    return lanes[0];
  }
};

}  // namespace headrace::device::cpu
