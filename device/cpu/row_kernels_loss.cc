#include <limits>

#include "device/cpu/row_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/row_kernels_loss.cc"
#include "device/cpu/row_kernels_targets.h"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "device/cpu/row_kernels_block.h"
#include "device/cpu/row_kernels_common.h"
#include "device/kernels/cross_entropy.inl.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

struct Target;
using Block = SerialBlock<Target>;

void cross_entropy_tile_here(const Matrix& logits, int64_t first, const int32_t* labels,
                             const CrossEntropyState& state) {
  for_each_row(logits.rows, logits.columns, [&](int64_t row) HWY_ATTR {
    if (labels[row] == kernels::kIgnoredLabel) {
      return;
    }
    const kernels::SoftmaxState after = kernels::cross_entropy_tile_row(
        Block(), row_of<const float>(logits, row), logits.columns, first, labels[row],
        {state.max[row], state.sum[row], state.target_logit[row]});
    state.max[row] = after.max;
    state.sum[row] = after.sum;
    state.target_logit[row] = after.target_logit;
  });
}

template <class T>
void cross_entropy_gradient_of(const Matrix& logits, int64_t first, const int32_t* labels,
                               const CrossEntropyState& state, float scale, const Matrix& dlogits) {
  for_each_row(logits.rows, logits.columns, [&](int64_t row) HWY_ATTR {
    kernels::cross_entropy_gradient_row(
        Block(), row_of<const float>(logits, row), logits.columns, first, labels[row],
        {state.max[row], state.sum[row], state.target_logit[row]}, scale, row_of<T>(dlogits, row));
  });
}

void cross_entropy_gradient_here(const Matrix& logits, int64_t first, const int32_t* labels,
                                 const CrossEntropyState& state, float scale,
                                 const Matrix& dlogits) {
  with_float_type(dlogits.dtype, [&](auto type) {
    cross_entropy_gradient_of<decltype(type)>(logits, first, labels, state, scale, dlogits);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

HWY_EXPORT(cross_entropy_tile_here);
HWY_EXPORT(cross_entropy_gradient_here);

namespace {

void check_logits(const Matrix& logits, int64_t first) {
  check_matrix(logits, "cross_entropy logits");
  HR_CHECK(logits.dtype == DType::f32 && first >= 0, "cross_entropy: {} logits, first {}",
           to_string(logits.dtype), first);
}

}  // namespace

void cross_entropy_start(const CrossEntropyState& state, int64_t tokens) {
  std::fill_n(state.max, tokens, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, tokens, 0.0F);
  std::fill_n(state.target_logit, tokens, 0.0F);
}

void cross_entropy_tile(const Matrix& logits, int64_t first, const int32_t* labels,
                        const CrossEntropyState& state) {
  check_logits(logits, first);
  HWY_DYNAMIC_DISPATCH(cross_entropy_tile_here)(logits, first, labels, state);
}

void cross_entropy_loss(const CrossEntropyState& state, const int32_t* labels, int64_t tokens,
                        double* loss_sum) {
  double sum = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (labels[t] == kernels::kIgnoredLabel) {
      continue;
    }
    sum += kernels::cross_entropy_loss_of({state.max[t], state.sum[t], state.target_logit[t]});
  }
  *loss_sum = sum;
}

void cross_entropy_gradient(const Matrix& logits, int64_t first, const int32_t* labels,
                            const CrossEntropyState& state, float scale, const Matrix& dlogits) {
  check_logits(logits, first);
  check_matrix(dlogits, "cross_entropy dlogits");
  HR_CHECK(dlogits.rows == logits.rows && dlogits.columns == logits.columns,
           "cross_entropy: dlogits [{}, {}], logits [{}, {}]", dlogits.rows, dlogits.columns,
           logits.rows, logits.columns);
  HWY_DYNAMIC_DISPATCH(cross_entropy_gradient_here)(logits, first, labels, state, scale, dlogits);
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
