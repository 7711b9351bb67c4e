#include "device/cpu/kernel_checks.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace headrace::device::cpu {

namespace {

bool is_arithmetic(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// Shape and dtype, not the data: also for questions about scratch.
void check_matrix_shape(const Matrix& matrix, const char* name) {
  HR_CHECK(is_arithmetic(matrix.dtype), "{} has dtype {}", name, to_string(matrix.dtype));
  HR_CHECK(matrix.rows >= 0 && matrix.columns >= 0 && matrix.stride >= matrix.columns,
           "{} is {} x {} with stride {}", name, matrix.rows, matrix.columns, matrix.stride);
  // The last element's offset must fit, whatever is computed from it.
  HR_CHECK(
      matrix.rows == 0 || matrix.stride <= std::numeric_limits<int64_t>::max() / 16 / matrix.rows,
      "{} of {} rows with stride {} is too large", name, matrix.rows, matrix.stride);
}

}  // namespace

void check_pointer(const void* pointer, int64_t count, const char* name) {
  HR_CHECK(count == 0 || pointer != nullptr, "{} of {} elements is a null pointer", name, count);
}

void check_matrix(const Matrix& matrix, const char* name) {
  check_matrix_shape(matrix, name);
  check_pointer(matrix.data, matrix.rows * matrix.columns, name);
  HR_CHECK(reinterpret_cast<uintptr_t>(matrix.data) %
                   static_cast<uintptr_t>(size_of(matrix.dtype).count()) ==
               0,
           "{} at {} is not aligned to its {} elements", name, fmt::ptr(matrix.data),
           to_string(matrix.dtype));
}

void check_same_shape(const Matrix& a, const Matrix& b, const char* names) {
  HR_CHECK(a.rows == b.rows && a.columns == b.columns, "{}: {} x {} and {} x {}", names, a.rows,
           a.columns, b.rows, b.columns);
}

void check_same_dtype(const Matrix& a, const Matrix& b, const char* names) {
  HR_CHECK(a.dtype == b.dtype, "{}: {} and {}", names, to_string(a.dtype), to_string(b.dtype));
}

void check_matmul_shapes(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                         const Matrix& c) {
  check_matrix_shape(a, "matmul a");
  check_matrix_shape(b, "matmul b");
  check_matrix_shape(c, "matmul c");
  check_same_dtype(a, b, "matmul a and b");
  HR_CHECK(c.dtype == a.dtype || c.dtype == DType::f32, "matmul of {} into {}", to_string(a.dtype),
           to_string(c.dtype));
  const int64_t rows = transpose_a ? a.columns : a.rows;
  const int64_t depth_a = transpose_a ? a.rows : a.columns;
  const int64_t depth_b = transpose_b ? b.columns : b.rows;
  const int64_t columns = transpose_b ? b.rows : b.columns;
  HR_CHECK(depth_a == depth_b && rows == c.rows && columns == c.columns,
           "matmul of {} x {} and {} x {} (after transposes) into {} x {}", rows, depth_a, depth_b,
           columns, c.rows, c.columns);
}

void check_attention_shape(const AttentionShape& shape, DType dtype) {
  HR_CHECK(is_arithmetic(dtype), "attention in {}", to_string(dtype));
  HR_CHECK(shape.batch >= 0 && shape.seq >= 0 && shape.head_dim > 0,
           "attention over {} sequences of {}, head_dim {}", shape.batch, shape.seq,
           shape.head_dim);
  HR_CHECK(shape.kv_heads > 0 && shape.q_heads > 0 && shape.q_heads % shape.kv_heads == 0,
           "attention with {} query heads and {} key/value heads", shape.q_heads, shape.kv_heads);
  HR_CHECK(std::isfinite(shape.scale), "attention with scale {}", shape.scale);
  const int64_t q_columns = shape.q_heads * shape.head_dim;
  const int64_t kv_columns = shape.kv_heads * shape.head_dim;
  HR_CHECK(shape.q_stride >= q_columns && shape.out_stride >= q_columns &&
               shape.k_stride >= kv_columns && shape.v_stride >= kv_columns,
           "attention strides q {}, k {}, v {}, out {} for {} and {} columns", shape.q_stride,
           shape.k_stride, shape.v_stride, shape.out_stride, q_columns, kv_columns);
}

void check_cross_entropy_state(const CrossEntropyState& state, int64_t tokens) {
  HR_CHECK(tokens >= 0, "cross-entropy over {} tokens", tokens);
  check_pointer(state.max, tokens, "cross-entropy maximum");
  check_pointer(state.sum, tokens, "cross-entropy sum");
  check_pointer(state.target_logit, tokens, "cross-entropy target logit");
}

}  // namespace headrace::device::cpu
