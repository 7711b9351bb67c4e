#include <algorithm>

#include "device/cpu/row_kernels.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/row_kernels_embedding.cc"
#include "device/cpu/row_kernels_targets.h"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
#include "device/cpu/row_kernels_block.h"
#include "device/cpu/row_kernels_common.h"
#include "device/cpu/row_kernels_tokens.h"
#include "device/kernels/elementwise.inl.h"
#include "device/kernels/embedding.inl.h"
#include "base/exact_float.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::device::cpu {
namespace HWY_NAMESPACE {

struct Target;
using Block = SerialBlock<Target>;

template <class T>
void embedding_forward_of(const Matrix& table, int64_t first, const int32_t* ids,
                          const Matrix& out) {
  for_each_row(out.rows, out.columns, [&](int64_t row) HWY_ATTR {
    const int64_t entry = ids[row] - first;
    if (entry >= 0 && entry < table.rows) {
      kernels::copy_row(Block(), row_of<const T>(table, entry), row_of<T>(out, row), out.columns);
    }
  });
}

void embedding_forward_here(const Matrix& table, int64_t first, const int32_t* ids,
                            const Matrix& out) {
  with_float_type(out.dtype,
                  [&](auto type) { embedding_forward_of<decltype(type)>(table, first, ids, out); });
}

/// One row of dtable: the sum of the rows of dout listed in [first, last), in that order.
template <class T>
void sum_rows(const Matrix& dout, const int32_t* first, const int32_t* last, T* target) {
  constexpr int64_t kColumns = 512;
  const Block block;
  for (int64_t column = 0; column < dout.columns; column += kColumns) {
    const int64_t count = std::min(kColumns, dout.columns - column);
    float sum[kColumns];
    kernels::cast_row(block, row_of<const T>(dout, *first) + column, sum, count);
    for (const int32_t* row = first + 1; row != last; ++row) {
      kernels::accumulate_row(block, row_of<const T>(dout, *row) + column, sum, count);
    }
    kernels::cast_row(block, static_cast<const float*>(sum), target + column, count);
  }
}

template <class T>
void embedding_backward_of(const Matrix& dout, const TokensById& tokens, const Matrix& dtable) {
  for_each_row(dtable.rows, dtable.columns, [&](int64_t id) HWY_ATTR {
    const int32_t* first = tokens.begin_of(id);
    const int32_t* last = tokens.begin_of(id + 1);
    if (first == last) {
      kernels::zero_row(Block(), row_of<T>(dtable, id), dtable.columns);
    } else {
      sum_rows(dout, first, last, row_of<T>(dtable, id));
    }
  });
}

void embedding_backward_here(const Matrix& dout, const TokensById& tokens, const Matrix& dtable) {
  with_float_type(dout.dtype,
                  [&](auto type) { embedding_backward_of<decltype(type)>(dout, tokens, dtable); });
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::device::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device::cpu {

HWY_EXPORT(embedding_forward_here);
HWY_EXPORT(embedding_backward_here);

void embedding_forward(const Matrix& table, TableRange range, const int32_t* ids,
                       const Matrix& out) {
  check_matrix(table, "embedding table");
  check_matrix(out, "embedding out");
  HR_CHECK(table.dtype == out.dtype && table.columns == out.columns,
           "embedding: table {} with {} columns, out {} with {}", to_string(table.dtype),
           table.columns, to_string(out.dtype), out.columns);
  check_ids(ids, out.rows, range, table.rows);
  HWY_DYNAMIC_DISPATCH(embedding_forward_here)(table, range.first, ids, out);
}

void embedding_backward(const Matrix& dout, const int32_t* ids, const Matrix& dtable,
                        TableRange range) {
  check_matrix(dout, "embedding dout");
  check_matrix(dtable, "embedding dtable");
  HR_CHECK(dtable.dtype == dout.dtype && dtable.columns == dout.columns,
           "embedding: dtable {} with {} columns, dout {} with {}", to_string(dtable.dtype),
           dtable.columns, to_string(dout.dtype), dout.columns);
  check_ids(ids, dout.rows, range, dtable.rows);
  const TokensById tokens(ids, dout.rows, range.first, dtable.rows);
  HWY_DYNAMIC_DISPATCH(embedding_backward_here)(dout, tokens, dtable);
}

}  // namespace headrace::device::cpu
#endif  // HWY_ONCE
