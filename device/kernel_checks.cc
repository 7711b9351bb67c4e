#include "device/kernel_checks.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace headrace::device {

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

/// Where 16 bytes are moved at a time.
void check_on_16_bytes(const Matrix& matrix, const char* name) {
  HR_CHECK(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 &&
               matrix.stride * size_of(matrix.dtype).count() % 16 == 0,
           "rows of {} do not begin at multiples of 16 bytes: {}, stride {}", name,
           fmt::ptr(matrix.data), matrix.stride);
}

void check_scaled_shape(const ScaledMatrix& matrix, const char* name) {
  HR_CHECK(matrix.rows > 0 && matrix.columns > 0 && matrix.rows % kScaledUnit == 0 &&
               matrix.columns % kScaledUnit == 0,
           "{} is {} x {}, which must be multiples of {}", name, matrix.rows, matrix.columns,
           kScaledUnit);
}

void check_scaled(const ScaledMatrix& matrix, const char* name) {
  check_scaled_shape(matrix, name);
  check_pointer(matrix.scale, 1, name);
  HR_CHECK(matrix.codes != nullptr && reinterpret_cast<uintptr_t>(matrix.codes) % 16 == 0,
           "codes of {} at {} are not on 16 bytes", name, fmt::ptr(matrix.codes));
}

void check_visibility(const Visibility& visible) {
  HR_CHECK((visible.begins == nullptr) == (visible.ends == nullptr),
           "what is visible begins as at {} says and ends as at {}", fmt::ptr(visible.begins),
           fmt::ptr(visible.ends));
}

void check_cross_entropy_state(const CrossEntropyState& state, int64_t tokens) {
  HR_CHECK(tokens >= 0, "cross-entropy over {} tokens", tokens);
  check_pointer(state.max, tokens, "cross-entropy maximum");
  check_pointer(state.sum, tokens, "cross-entropy sum");
  check_pointer(state.target_logit, tokens, "cross-entropy target logit");
}

}  // namespace

void check_scratch(const Workspace& scratch, Bytes needed) {
  HR_CHECK(scratch.size >= needed && (needed.count() == 0 || scratch.data != nullptr),
           "scratch of {} bytes at {}, {} are needed", scratch.size, fmt::ptr(scratch.data),
           needed);
  HR_CHECK(reinterpret_cast<uintptr_t>(scratch.data) % kScratchAlignment == 0,
           "scratch at {} is not aligned to {} bytes", fmt::ptr(scratch.data), kScratchAlignment);
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

void check_matmul(const Matrix& a, const Matrix& b, const Matrix& c) {
  check_matrix(a, "matmul a");
  check_matrix(b, "matmul b");
  check_matrix(c, "matmul c");
}

void check_matmul_bias(const Matrix& a, const void* bias, const Matrix& c) {
  check_same_dtype(a, c, "matmul with a bias, a and c");
  check_add_bias(c, bias);
}

void check_matmul_scaled_shapes(const ScaledMatrix& a, const ScaledMatrix& b, const Matrix& c) {
  check_scaled_shape(a, "matmul_scaled a");
  check_scaled_shape(b, "matmul_scaled b");
  check_matrix_shape(c, "matmul_scaled c");
  HR_CHECK(a.columns == b.columns && a.rows == c.rows && b.rows == c.columns,
           "matmul_scaled of {} x {} and {} x {} (transposed) into {} x {}", a.rows, a.columns,
           b.rows, b.columns, c.rows, c.columns);
}

void check_matmul_scaled(const ScaledMatrix& a, const ScaledMatrix& b, const void* bias,
                         const Matrix& c, bool accumulate) {
  check_scaled(a, "matmul_scaled a");
  check_scaled(b, "matmul_scaled b");
  check_matrix(c, "matmul_scaled c");
  check_on_16_bytes(c, "matmul_scaled c");
  HR_CHECK(bias == nullptr || (!accumulate && c.dtype != DType::f32),
           "matmul_scaled with a bias into {}{}", to_string(c.dtype),
           accumulate ? ", added to what is there" : "");
}

void check_quantize(const Matrix& source, const ScaledMatrix& target) {
  check_matrix(source, "quantize source");
  check_scaled(target, "quantize target");
  check_on_16_bytes(source, "quantize source");
  HR_CHECK(source.rows == target.rows && source.columns == target.columns,
           "quantize of {} x {} into {} x {}", source.rows, source.columns, target.rows,
           target.columns);
}

void check_table_range(TableRange range, int64_t rows) {
  HR_CHECK(range.first >= 0 && range.first + rows <= range.vocabulary,
           "embedding: a table of entries {} to {} of a vocabulary of {}", range.first,
           range.first + rows, range.vocabulary);
}

void check_embedding_forward(const Matrix& table, TableRange range, const int32_t* ids,
                             const Matrix& out) {
  check_matrix(table, "embedding table");
  check_matrix(out, "embedding out");
  check_same_dtype(table, out, "embedding table and out");
  HR_CHECK(table.columns == out.columns, "embedding table of {} columns, out of {}", table.columns,
           out.columns);
  check_table_range(range, table.rows);
  check_pointer(ids, out.rows, "embedding ids");
}

void check_embedding_backward(const Matrix& dout, const int32_t* ids, const Matrix& dtable,
                              TableRange range) {
  check_matrix(dout, "embedding dout");
  check_matrix(dtable, "embedding dtable");
  check_same_dtype(dout, dtable, "embedding dout and dtable");
  HR_CHECK(dtable.columns == dout.columns, "embedding dtable of {} columns, dout of {}",
           dtable.columns, dout.columns);
  check_table_range(range, dtable.rows);
  check_pointer(ids, dout.rows, "embedding ids");
}

void check_rms_norm_forward(const Matrix& x, const void* weight, float epsilon, const Matrix& y,
                            float* inv_rms) {
  check_matrix(x, "rms_norm x");
  check_matrix(y, "rms_norm y");
  check_same_shape(x, y, "rms_norm x and y");
  check_same_dtype(x, y, "rms_norm x and y");
  check_pointer(weight, x.columns, "rms_norm weight");
  check_pointer(inv_rms, x.rows, "rms_norm inv_rms");
  HR_CHECK(epsilon >= 0, "rms_norm epsilon {}", epsilon);
}

void check_rms_norm_backward(const Matrix& dy, const Matrix& x, const void* weight,
                             const float* inv_rms, const Matrix& dx, void* dweight) {
  check_matrix(dy, "rms_norm dy");
  check_matrix(x, "rms_norm x");
  check_matrix(dx, "rms_norm dx");
  check_same_shape(dy, x, "rms_norm dy and x");
  check_same_shape(dx, x, "rms_norm dx and x");
  check_same_dtype(dy, x, "rms_norm dy and x");
  check_same_dtype(dx, x, "rms_norm dx and x");
  check_pointer(weight, x.columns, "rms_norm weight");
  check_pointer(inv_rms, x.rows, "rms_norm inv_rms");
  check_pointer(dweight, x.columns, "rms_norm dweight");
}

void check_rope(const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq,
                const float* cos_sin) {
  check_matrix(x, "rope x");
  HR_CHECK(heads > 0 && head_dim > 0 && head_dim % 2 == 0 && x.columns == heads * head_dim,
           "rope over {} columns as {} heads of {}", x.columns, heads, head_dim);
  HR_CHECK(seq > 0 && x.rows % seq == 0, "rope over {} rows as sequences of {}", x.rows, seq);
  check_pointer(cos_sin, x.rows, "rope table");
}

void check_swiglu_forward(const Matrix& gate, const Matrix& up, const Matrix& out) {
  check_matrix(gate, "swiglu gate");
  check_matrix(up, "swiglu up");
  check_matrix(out, "swiglu out");
  check_same_shape(gate, up, "swiglu gate and up");
  check_same_shape(gate, out, "swiglu gate and out");
  check_same_dtype(gate, up, "swiglu gate and up");
  check_same_dtype(gate, out, "swiglu gate and out");
}

void check_swiglu_backward(const Matrix& dout, const Matrix& gate, const Matrix& up,
                           const Matrix& dgate, const Matrix& dup) {
  check_matrix(dout, "swiglu dout");
  for (const Matrix& other : {gate, up, dgate, dup}) {
    check_matrix(other, "swiglu operand");
    check_same_shape(dout, other, "swiglu dout and operand");
    check_same_dtype(dout, other, "swiglu dout and operand");
  }
}

void check_add(const Matrix& a, const Matrix& b, const Matrix& out) {
  check_matrix(a, "add a");
  check_matrix(b, "add b");
  check_matrix(out, "add out");
  check_same_shape(a, b, "add a and b");
  check_same_shape(a, out, "add a and out");
  check_same_dtype(a, b, "add a and b");
  check_same_dtype(a, out, "add a and out");
}

void check_add_bias(const Matrix& x, const void* bias) {
  check_matrix(x, "add_bias x");
  check_pointer(bias, x.columns, "bias");
}

void check_bias_gradient(const Matrix& dy, void* dbias) {
  check_matrix(dy, "bias_gradient dy");
  check_pointer(dbias, dy.columns, "dbias");
}

void check_accumulate(const void* source, DType source_dtype, float* target, Elements count) {
  check_matrix({const_cast<void*>(source), source_dtype, 1, count.count(), count.count()},
               "accumulate source");
  check_matrix({target, DType::f32, 1, count.count(), count.count()}, "accumulate target");
}

void check_cast(const void* source, DType source_dtype, void* target, DType target_dtype,
                Elements count) {
  check_matrix({const_cast<void*>(source), source_dtype, 1, count.count(), count.count()},
               "cast source");
  check_matrix({target, target_dtype, 1, count.count(), count.count()}, "cast target");
}

void check_optimizer_update(const OptimizerStep& step, const OptimizerArrays& arrays,
                            const int32_t* not_finite) {
  const int64_t count = arrays.count;
  const auto check_array = [&](const void* array, DType dtype, const char* name) {
    check_matrix({const_cast<void*>(array), dtype, 1, count, count}, name);
  };
  HR_CHECK(static_cast<int>(arrays.master != nullptr) +
                       static_cast<int>(arrays.master_low != nullptr) +
                       static_cast<int>(arrays.weight_is_master) ==
                   1 ||
               count == 0,
           "{} elements need one of master, master_low and weight_is_master", count);
  if (arrays.master != nullptr) {
    check_array(arrays.master, DType::f32, "optimizer master");
  } else {
    HR_CHECK(arrays.weight_dtype == DType::bf16, "a master of {} weights",
             to_string(arrays.weight_dtype));
    check_array(arrays.weight, DType::bf16, "optimizer weights");
  }
  HR_CHECK(arrays.weight == nullptr || arrays.weight_dtype == DType::bf16 ||
               arrays.weight_dtype == DType::f16,
           "optimizer weights of {}", to_string(arrays.weight_dtype));
  HR_CHECK(arrays.moment_dtype == DType::f32 || arrays.moment_dtype == DType::bf16, "moments of {}",
           to_string(arrays.moment_dtype));
  const int moments = moment_arrays(step);
  check_pointer(arrays.moment1, moments > 0 ? count : 0, "optimizer moment");
  check_pointer(arrays.moment2, moments > 1 ? count : 0, "optimizer second moment");
  if (step.rule != OptimizerRule::rewrite) {
    check_array(arrays.gradient, arrays.gradient_dtype, "optimizer gradient");
  }
  check_pointer(not_finite, 1, "optimizer flag");
}

void check_gradient_statistics(const void* gradient, DType dtype, Elements count,
                               const double* sums) {
  check_matrix({const_cast<void*>(gradient), dtype, 1, count.count(), count.count()},
               "gradient to measure");
  check_pointer(sums, count.count(), "gradient statistics");
}

void check_attention_forward(const AttentionShape& shape, const void* q, const void* k,
                             const void* v, void* out, float* log_sum_exp) {
  check_visibility(shape.visible);
  for (const void* pointer :
       {q, k, v, static_cast<const void*>(out), static_cast<const void*>(log_sum_exp)}) {
    check_pointer(pointer, shape.batch * shape.seq, "attention operand");
  }
}

void check_attention_backward(const AttentionShape& shape, const void* q, const void* k,
                              const void* v, const void* out, const void* dout,
                              const float* log_sum_exp, void* dq, void* dk, void* dv) {
  check_visibility(shape.visible);
  for (const void* pointer :
       {q, k, v, out, dout, static_cast<const void*>(log_sum_exp), static_cast<const void*>(dq),
        static_cast<const void*>(dk), static_cast<const void*>(dv)}) {
    check_pointer(pointer, shape.batch * shape.seq, "attention operand");
  }
}

void check_cross_entropy_start(const CrossEntropyState& state, int64_t tokens) {
  check_cross_entropy_state(state, tokens);
}

void check_cross_entropy_tile(const Matrix& logits, int64_t first, const int32_t* labels,
                              const CrossEntropyState& state) {
  check_matrix(logits, "cross-entropy logits");
  HR_CHECK(logits.dtype == DType::f32 && first >= 0, "cross-entropy over {} logits from {} on",
           to_string(logits.dtype), first);
  check_pointer(labels, logits.rows, "cross-entropy labels");
  check_cross_entropy_state(state, logits.rows);
}

void check_cross_entropy_loss(const CrossEntropyState& state, const int32_t* labels, int64_t tokens,
                              double* loss_sum) {
  check_cross_entropy_state(state, tokens);
  check_pointer(labels, tokens, "cross-entropy labels");
  check_pointer(loss_sum, 1, "cross-entropy loss");
}

void check_cross_entropy_gradient(const Matrix& logits, int64_t first, const int32_t* labels,
                                  const CrossEntropyState& state, const Matrix& dlogits) {
  check_matrix(logits, "cross-entropy logits");
  check_matrix(dlogits, "cross-entropy dlogits");
  check_same_shape(logits, dlogits, "cross-entropy logits and dlogits");
  HR_CHECK(logits.dtype == DType::f32 && first >= 0 && logits.data != dlogits.data,
           "cross-entropy gradient of {} logits from {} on", to_string(logits.dtype), first);
  check_pointer(labels, logits.rows, "cross-entropy labels");
  check_cross_entropy_state(state, logits.rows);
}

}  // namespace headrace::device
