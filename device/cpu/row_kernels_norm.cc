#include "device/cpu/row_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/row_kernels_norm.cc"
#include "device/cpu/row_kernels_targets.h"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "device/cpu/row_kernels_block.h"
#include "device/cpu/row_kernels_common.h"
#include "device/kernels/elementwise.inl.h"
#include "device/kernels/rms_norm.inl.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

struct Target;
using Block = SerialBlock<Target>;

template <class T>
void rms_norm_forward_of(const Matrix& x, const void* weight, float epsilon, const Matrix& y,
                         float* inv_rms) {
  for_each_row(x.rows, x.columns, [&](int64_t row) HWY_ATTR {
    inv_rms[row] = kernels::rms_norm_forward_row(Block(), row_of<const T>(x, row),
                                                 static_cast<const T*>(weight), epsilon,
                                                 row_of<T>(y, row), x.columns);
  });
}

void rms_norm_forward_here(const Matrix& x, const void* weight, float epsilon, const Matrix& y,
                           float* inv_rms) {
  with_float_type(x.dtype, [&](auto type) {
    rms_norm_forward_of<decltype(type)>(x, weight, epsilon, y, inv_rms);
  });
}

/// Everything rms_norm_backward needs, for one dtype.
template <class T>
struct NormBackward {
  Matrix dy;
  Matrix x;
  const T* weight = nullptr;
  const float* inv_rms = nullptr;
  Matrix dx;
  float* partials = nullptr;  // [row blocks, columns]

  template <bool kAccumulate>
  void run_rows(int64_t rows_in_block) const {
    parallel_for_blocks(x.rows, rows_in_block, [&](int64_t begin, int64_t end) HWY_ATTR {
      float* partial = partials + begin / rows_in_block * x.columns;
      std::fill_n(partial, x.columns, 0.0F);
      for (int64_t row = begin; row < end; ++row) {
        kernels::rms_norm_backward_row<kAccumulate>(Block(), row_of<const T>(dy, row),
                                                    row_of<const T>(x, row), weight, inv_rms[row],
                                                    row_of<T>(dx, row), partial, x.columns);
      }
    });
  }

  /// dweight = sum of the partials, block by block; uses the first one as accumulator.
  void combine(int64_t blocks, T* dweight) const {
    parallel_for_blocks(x.columns, kColumnsPerBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
      for (int64_t block = 1; block < blocks; ++block) {
        kernels::accumulate_row(Block(), partials + block * x.columns + begin, partials + begin,
                                end - begin);
      }
      kernels::cast_row(Block(), static_cast<const float*>(partials) + begin, dweight + begin,
                        end - begin);
    });
  }

  static constexpr int64_t kColumnsPerBlock = 256;
};

template <class T>
void rms_norm_backward_of(const Matrix& dy, const Matrix& x, const void* weight,
                          const float* inv_rms, const Matrix& dx, bool accumulate_dx, void* dweight,
                          float* partials) {
  if (x.rows == 0) {
    std::fill_n(static_cast<T*>(dweight), x.columns, T{});
    return;
  }
  const NormBackward<T> work{dy, x, static_cast<const T*>(weight), inv_rms, dx, partials};
  const int64_t rows_in_block = norm_rows_per_block(x.rows);
  if (accumulate_dx) {
    work.template run_rows<true>(rows_in_block);
  } else {
    work.template run_rows<false>(rows_in_block);
  }
  work.combine((x.rows + rows_in_block - 1) / rows_in_block, static_cast<T*>(dweight));
}

void rms_norm_backward_here(const Matrix& dy, const Matrix& x, const void* weight,
                            const float* inv_rms, const Matrix& dx, bool accumulate_dx,
                            void* dweight, float* partials) {
  with_float_type(x.dtype, [&](auto type) {
    rms_norm_backward_of<decltype(type)>(dy, x, weight, inv_rms, dx, accumulate_dx, dweight,
                                         partials);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

HWY_EXPORT(rms_norm_forward_here);
HWY_EXPORT(rms_norm_backward_here);

void rms_norm_forward(const Matrix& x, const void* weight, float epsilon, const Matrix& y,
                      float* inv_rms) {
  check_matrix(x, "rms_norm x");
  check_like(y, x, "rms_norm y");
  HWY_DYNAMIC_DISPATCH(rms_norm_forward_here)(x, weight, epsilon, y, inv_rms);
}

void rms_norm_backward(const Matrix& dy, const Matrix& x, const void* weight, const float* inv_rms,
                       const Matrix& dx, bool accumulate_dx, void* dweight, Workspace scratch) {
  check_matrix(x, "rms_norm x");
  check_like(dy, x, "rms_norm dy");
  check_like(dx, x, "rms_norm dx");
  const Bytes needed = rms_norm_backward_scratch(x.rows, x.columns);
  HR_CHECK(scratch.size >= needed, "rms_norm_backward: scratch of {} bytes, needs {}",
           scratch.size.count(), needed.count());
  HWY_DYNAMIC_DISPATCH(rms_norm_backward_here)
  (dy, x, weight, inv_rms, dx, accumulate_dx, dweight, reinterpret_cast<float*>(scratch.data));
}

Bytes rms_norm_backward_scratch(int64_t rows, int64_t columns) {
  const int64_t rows_in_block = norm_rows_per_block(rows);
  return bytes_for(Elements(columns), DType::f32) * ((rows + rows_in_block - 1) / rows_in_block);
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
