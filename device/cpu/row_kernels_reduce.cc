#include <cmath>
#include <vector>

#include "device/cpu/row_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/row_kernels_reduce.cc"
#include "device/cpu/row_kernels_targets.h"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "device/cpu/row_kernels_block.h"
#include "device/cpu/row_kernels_common.h"
#include "device/kernels/elementwise.inl.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

struct Target;
using Block = SerialBlock<Target>;

constexpr int64_t kBiasColumns = 256;
constexpr int64_t kBiasRows = 64;

/// Sums `count` (<= kBiasColumns) columns of dy: runs of kBiasRows rows first, then the runs.
template <class T>
void sum_columns(const Matrix& dy, int64_t column, int64_t count, T* dbias) {
  const Block block;
  float total[kBiasColumns] = {};
  for (int64_t begin = 0; begin < dy.rows; begin += kBiasRows) {
    float run[kBiasColumns] = {};
    for (int64_t row = begin; row < std::min(dy.rows, begin + kBiasRows); ++row) {
      kernels::accumulate_row(block, row_of<const T>(dy, row) + column, run, count);
    }
    kernels::accumulate_row(block, static_cast<const float*>(run), total, count);
  }
  kernels::cast_row(block, static_cast<const float*>(total), dbias + column, count);
}

template <class T>
void bias_gradient_of(const Matrix& dy, void* dbias) {
  parallel_for_blocks(dy.columns, kBiasColumns, [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t column = begin; column < end; column += kBiasColumns) {
      sum_columns(dy, column, std::min(kBiasColumns, end - column), static_cast<T*>(dbias));
    }
  });
}

void bias_gradient_here(const Matrix& dy, void* dbias) {
  with_float_type(dy.dtype, [&](auto type) { bias_gradient_of<decltype(type)>(dy, dbias); });
}

template <class T>
void accumulate_of(const void* source, float* target, int64_t count, bool overwrite) {
  const auto* from = static_cast<const T*>(source);
  parallel_for_blocks(count, kElementsPerBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    if (overwrite) {
      kernels::cast_row(Block(), from + begin, target + begin, end - begin);
    } else {
      kernels::accumulate_row(Block(), from + begin, target + begin, end - begin);
    }
  });
}

void accumulate_here(const void* source, DType source_dtype, float* target, int64_t count,
                     bool overwrite) {
  with_float_type(source_dtype, [&](auto type) {
    accumulate_of<decltype(type)>(source, target, count, overwrite);
  });
}

double sum_of_squares_here(const float* values, int64_t count) {
  return kernels::sum_of_squares(Block(), values, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

HWY_EXPORT(bias_gradient_here);
HWY_EXPORT(accumulate_here);
HWY_EXPORT(sum_of_squares_here);

void bias_gradient(const Matrix& dy, void* dbias) {
  check_matrix(dy, "bias_gradient dy");
  HWY_DYNAMIC_DISPATCH(bias_gradient_here)(dy, dbias);
}

void accumulate(const void* source, DType source_dtype, float* target, Elements count,
                bool overwrite) {
  HWY_DYNAMIC_DISPATCH(accumulate_here)(source, source_dtype, target, count.count(), overwrite);
}

GradientStats gradient_stats(const float* gradient, Elements count) {
  constexpr int64_t kBlock = int64_t{1} << 18;
  std::vector<double> partials(static_cast<size_t>((count.count() + kBlock - 1) / kBlock));
  const auto sum_block = HWY_DYNAMIC_DISPATCH(sum_of_squares_here);
  parallel_for_blocks(count.count(), kBlock, [&](int64_t begin, int64_t end) {
    partials[static_cast<size_t>(begin / kBlock)] = sum_block(gradient + begin, end - begin);
  });
  GradientStats stats;
  for (const double partial : partials) {
    stats.sum_of_squares += partial;
  }
  // A square of a finite float is at most 2^256: 2^63 of them do not overflow a double.
  stats.all_finite = std::isfinite(stats.sum_of_squares);
  return stats;
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
