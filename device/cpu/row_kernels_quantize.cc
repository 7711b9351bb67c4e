#include "device/cpu/row_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/row_kernels_quantize.cc"
#include "device/cpu/row_kernels_targets.h"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "device/cpu/row_kernels_block.h"
#include "device/cpu/row_kernels_common.h"
#include "device/kernels/e4m3.inl.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

struct Target;
using Block = SerialBlock<Target>;

/// Over at most kQuantizeParts parts; infinity where one is not finite.
template <class T>
float largest_magnitude_of(const Matrix& source, float* maxima) {
  const int64_t rows_per_part =
      std::max(ceil_div(source.rows, kQuantizeParts), rows_per_block(source.columns));
  parallel_for_blocks(source.rows, rows_per_part, [&](int64_t begin, int64_t end) HWY_ATTR {
    float largest = 0;
    for (int64_t row = begin; row < end; ++row) {
      largest = std::max(largest, kernels::largest_magnitude_row(
                                      Block(), row_of<const T>(source, row), source.columns));
    }
    maxima[begin / rows_per_part] = largest;
  });
  return *std::max_element(maxima, maxima + ceil_div(source.rows, rows_per_part));
}

template <class T>
void quantize_of(const Matrix& source, const ScaledMatrix& target, float* maxima) {
  const kernels::E4m3Scale scale = kernels::e4m3_scale(largest_magnitude_of<T>(source, maxima));
  *target.scale = scale.from_codes;
  auto* const codes = static_cast<kernels::E4m3*>(target.codes);
  for_each_piece(
      source.rows, source.columns, [&](int64_t row, int64_t column, int64_t count) HWY_ATTR {
        kernels::quantize_row(Block(), row_of<const T>(source, row) + column, scale.to_codes,
                              codes + row * target.columns + column, count);
      });
}

void quantize_here(const Matrix& source, const ScaledMatrix& target, float* maxima) {
  with_float_type(source.dtype,
                  [&](auto type) { quantize_of<decltype(type)>(source, target, maxima); });
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

HWY_EXPORT(quantize_here);

void quantize(const Matrix& source, const ScaledMatrix& target, Workspace scratch) {
  HWY_DYNAMIC_DISPATCH(quantize_here)(source, target, reinterpret_cast<float*>(scratch.data));
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
