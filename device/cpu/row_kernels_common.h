#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "device/kernels.h"

// What the files row_kernels_*.cc share: preconditions, dtype dispatch, distribution of rows.
namespace headrace::device::cpu {

/// Work handed to a thread at a time; large enough to hide the cost of handing it over.
inline constexpr int64_t kElementsPerBlock = 16384;

/// Rows that make about kElementsPerBlock elements.
inline int64_t rows_per_block(int64_t columns) {
  return std::max<int64_t>(1, kElementsPerBlock / std::max<int64_t>(1, columns));
}

inline bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

inline void check_matrix(const Matrix& m, const char* name) {
  HR_CHECK(m.rows >= 0 && m.columns >= 0 && m.stride >= m.columns,
           "{}: {} rows, {} columns, stride {}", name, m.rows, m.columns, m.stride);
  HR_CHECK(m.data != nullptr || m.rows == 0 || m.columns == 0, "{}: no data", name);
  HR_CHECK(is_float(m.dtype), "{}: dtype {}", name, to_string(m.dtype));
}

/// `m` is a valid matrix with the dtype and shape of `like`.
inline void check_like(const Matrix& m, const Matrix& like, const char* name) {
  check_matrix(m, name);
  HR_CHECK(m.dtype == like.dtype && m.rows == like.rows && m.columns == like.columns,
           "{}: {} [{}, {}], expected {} [{}, {}]", name, to_string(m.dtype), m.rows, m.columns,
           to_string(like.dtype), like.rows, like.columns);
}

/// Calls f with a value of the C++ type that stores `dtype` (f32, bf16 or f16).
template <class F>
void with_float_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(Bf16{});
    case DType::f16:
      return f(F16{});
    default:
      HR_CHECK(false, "kernels take f32, bf16 or f16, not {}", to_string(dtype));
  }
}

template <class T>
T* row_of(const Matrix& m, int64_t row) {
  return static_cast<T*>(m.data) + row * m.stride;
}

/// Rows of rms_norm_backward whose contributions to dweight are summed together: at most 128
/// partial sums, whatever the number of rows.
inline int64_t norm_rows_per_block(int64_t rows) {
  return std::max<int64_t>(32, (rows + 127) / 128);
}

/// Runs body(row) for every row, in parallel.
template <class Body>
void for_each_row(int64_t rows, int64_t columns, const Body& body) {
  parallel_for_blocks(rows, rows_per_block(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      body(row);
    }
  });
}

/// Runs body(row, column, count) over pieces of all rows, in parallel, so that few long rows are
/// spread as well as many short ones. For elementwise work only.
template <class Body>
void for_each_piece(int64_t rows, int64_t columns, const Body& body) {
  const int64_t pieces = (columns + kElementsPerBlock - 1) / kElementsPerBlock;
  for_each_row(rows * pieces, std::min(columns, kElementsPerBlock), [&](int64_t i) {
    const int64_t column = i % pieces * kElementsPerBlock;
    body(i / pieces, column, std::min(kElementsPerBlock, columns - column));
  });
}

}  // namespace headrace::device::cpu
