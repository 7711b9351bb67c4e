#include "device/cpu/cpu_kernels.h"

#include <cmath>

#include "base/check.h"
#include "device/cpu/kernel_checks.h"
#include "device/cpu/row_kernels.h"
#include "device/cpu/scratch.h"

// Tasks capture their arguments by value: the caller's references end with the call.
namespace headrace::device::cpu {

CpuKernels::CpuKernels() : matmul_(products_, prefers_bf16_instructions()), attention_(products_) {}

void CpuKernels::matmul(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                        bool transpose_b, const Matrix& c, bool accumulate, Workspace scratch) {
  check_matrix(a, "matmul a");
  check_matrix(b, "matmul b");
  check_matrix(c, "matmul c");
  check_scratch(scratch, matmul_scratch(a, transpose_a, b, transpose_b, c));
  stream.run_on_host(
      [=, this] { matmul_.run(a, transpose_a, b, transpose_b, c, accumulate, scratch); });
}

Bytes CpuKernels::matmul_scratch(const Matrix& a, bool transpose_a, const Matrix& b,
                                 bool transpose_b, const Matrix& c) const {
  check_matmul_shapes(a, transpose_a, b, transpose_b, c);
  return matmul_.scratch(a, transpose_a, b, transpose_b, c);
}

void CpuKernels::embedding_forward(Stream& stream, const Matrix& table, TableRange range,
                                   const int32_t* ids, const Matrix& out) {
  check_matrix(table, "embedding table");
  check_matrix(out, "embedding out");
  check_same_dtype(table, out, "embedding table and out");
  HR_CHECK(table.columns == out.columns, "embedding table of {} columns, out of {}", table.columns,
           out.columns);
  check_pointer(ids, out.rows, "embedding ids");
  stream.run_on_host([=] { cpu::embedding_forward(table, range, ids, out); });
}

void CpuKernels::embedding_backward(Stream& stream, const Matrix& dout, const int32_t* ids,
                                    const Matrix& dtable, TableRange range) {
  check_matrix(dout, "embedding dout");
  check_matrix(dtable, "embedding dtable");
  check_same_dtype(dout, dtable, "embedding dout and dtable");
  HR_CHECK(dtable.columns == dout.columns, "embedding dtable of {} columns, dout of {}",
           dtable.columns, dout.columns);
  check_pointer(ids, dout.rows, "embedding ids");
  stream.run_on_host([=] { cpu::embedding_backward(dout, ids, dtable, range); });
}

void CpuKernels::rms_norm_forward(Stream& stream, const Matrix& x, const void* weight,
                                  float epsilon, const Matrix& y, float* inv_rms) {
  check_matrix(x, "rms_norm x");
  check_matrix(y, "rms_norm y");
  check_same_shape(x, y, "rms_norm x and y");
  check_same_dtype(x, y, "rms_norm x and y");
  check_pointer(weight, x.columns, "rms_norm weight");
  check_pointer(inv_rms, x.rows, "rms_norm inv_rms");
  HR_CHECK(epsilon >= 0, "rms_norm epsilon {}", epsilon);
  stream.run_on_host([=] { cpu::rms_norm_forward(x, weight, epsilon, y, inv_rms); });
}

void CpuKernels::rms_norm_backward(Stream& stream, const Matrix& dy, const Matrix& x,
                                   const void* weight, const float* inv_rms, const Matrix& dx,
                                   bool accumulate_dx, void* dweight, Workspace scratch) {
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
  check_scratch(scratch, rms_norm_backward_scratch(x.rows, x.columns));
  stream.run_on_host(
      [=] { cpu::rms_norm_backward(dy, x, weight, inv_rms, dx, accumulate_dx, dweight, scratch); });
}

Bytes CpuKernels::rms_norm_backward_scratch(int64_t rows, int64_t columns) const {
  HR_CHECK(rows >= 0 && columns >= 0, "rms_norm of {} x {}", rows, columns);
  return cpu::rms_norm_backward_scratch(rows, columns);
}

void CpuKernels::rope(Stream& stream, const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq,
                      const float* cos_sin, bool inverse) {
  check_matrix(x, "rope x");
  HR_CHECK(heads > 0 && head_dim > 0 && head_dim % 2 == 0 && x.columns == heads * head_dim,
           "rope over {} columns as {} heads of {}", x.columns, heads, head_dim);
  HR_CHECK(seq > 0 && x.rows % seq == 0, "rope over {} rows as sequences of {}", x.rows, seq);
  check_pointer(cos_sin, x.rows, "rope table");
  stream.run_on_host([=] { cpu::rope(x, heads, head_dim, seq, cos_sin, inverse); });
}

void CpuKernels::swiglu_forward(Stream& stream, const Matrix& gate, const Matrix& up,
                                const Matrix& out) {
  check_matrix(gate, "swiglu gate");
  check_matrix(up, "swiglu up");
  check_matrix(out, "swiglu out");
  check_same_shape(gate, up, "swiglu gate and up");
  check_same_shape(gate, out, "swiglu gate and out");
  check_same_dtype(gate, up, "swiglu gate and up");
  check_same_dtype(gate, out, "swiglu gate and out");
  stream.run_on_host([=] { cpu::swiglu_forward(gate, up, out); });
}

void CpuKernels::swiglu_backward(Stream& stream, const Matrix& dout, const Matrix& gate,
                                 const Matrix& up, const Matrix& dgate, const Matrix& dup) {
  check_matrix(dout, "swiglu dout");
  for (const Matrix& other : {gate, up, dgate, dup}) {
    check_matrix(other, "swiglu operand");
    check_same_shape(dout, other, "swiglu dout and operand");
    check_same_dtype(dout, other, "swiglu dout and operand");
  }
  stream.run_on_host([=] { cpu::swiglu_backward(dout, gate, up, dgate, dup); });
}

void CpuKernels::add(Stream& stream, const Matrix& a, const Matrix& b, const Matrix& out) {
  check_matrix(a, "add a");
  check_matrix(b, "add b");
  check_matrix(out, "add out");
  check_same_shape(a, b, "add a and b");
  check_same_shape(a, out, "add a and out");
  check_same_dtype(a, b, "add a and b");
  check_same_dtype(a, out, "add a and out");
  stream.run_on_host([=] { cpu::add(a, b, out); });
}

void CpuKernels::add_bias(Stream& stream, const Matrix& x, const void* bias) {
  check_matrix(x, "add_bias x");
  check_pointer(bias, x.columns, "bias");
  stream.run_on_host([=] { cpu::add_bias(x, bias); });
}

void CpuKernels::bias_gradient(Stream& stream, const Matrix& dy, void* dbias) {
  check_matrix(dy, "bias_gradient dy");
  check_pointer(dbias, dy.columns, "dbias");
  stream.run_on_host([=] { cpu::bias_gradient(dy, dbias); });
}

void CpuKernels::accumulate(Stream& stream, const void* source, DType source_dtype, float* target,
                            Elements count, bool overwrite) {
  check_matrix({const_cast<void*>(source), source_dtype, 1, count.count(), count.count()},
               "accumulate source");
  check_matrix({target, DType::f32, 1, count.count(), count.count()}, "accumulate target");
  stream.run_on_host([=] { cpu::accumulate(source, source_dtype, target, count, overwrite); });
}

void CpuKernels::cast(Stream& stream, const void* source, DType source_dtype, void* target,
                      DType target_dtype, Elements count) {
  check_matrix({const_cast<void*>(source), source_dtype, 1, count.count(), count.count()},
               "cast source");
  check_matrix({target, target_dtype, 1, count.count(), count.count()}, "cast target");
  stream.run_on_host([=] { cpu::cast(source, source_dtype, target, target_dtype, count); });
}

void CpuKernels::attention_forward(Stream& stream, const AttentionShape& shape, DType dtype,
                                   const void* q, const void* k, const void* v, void* out,
                                   float* log_sum_exp, Workspace scratch) {
  check_scratch(scratch, attention_scratch(shape, dtype));
  for (const void* pointer :
       {q, k, v, static_cast<const void*>(out), static_cast<const void*>(log_sum_exp)}) {
    check_pointer(pointer, shape.batch * shape.seq, "attention operand");
  }
  stream.run_on_host(
      [=, this] { attention_.forward(shape, dtype, q, k, v, out, log_sum_exp, scratch); });
}

void CpuKernels::attention_backward(Stream& stream, const AttentionShape& shape, DType dtype,
                                    const void* q, const void* k, const void* v, const void* out,
                                    const void* dout, const float* log_sum_exp, void* dq, void* dk,
                                    void* dv, Workspace scratch) {
  check_scratch(scratch, attention_scratch(shape, dtype));
  for (const void* pointer :
       {q, k, v, out, dout, static_cast<const void*>(log_sum_exp), static_cast<const void*>(dq),
        static_cast<const void*>(dk), static_cast<const void*>(dv)}) {
    check_pointer(pointer, shape.batch * shape.seq, "attention operand");
  }
  stream.run_on_host([=, this] {
    attention_.backward(shape, dtype, q, k, v, out, dout, log_sum_exp, dq, dk, dv, scratch);
  });
}

Bytes CpuKernels::attention_scratch(const AttentionShape& shape, DType dtype) const {
  check_attention_shape(shape, dtype);
  return attention_.scratch(shape);
}

void CpuKernels::cross_entropy_start(Stream& stream, const CrossEntropyState& state,
                                     int64_t tokens) {
  check_cross_entropy_state(state, tokens);
  stream.run_on_host([=] { cpu::cross_entropy_start(state, tokens); });
}

void CpuKernels::cross_entropy_tile(Stream& stream, const Matrix& logits, int64_t first,
                                    const int32_t* labels, const CrossEntropyState& state) {
  check_matrix(logits, "cross-entropy logits");
  HR_CHECK(logits.dtype == DType::f32 && first >= 0, "cross-entropy over {} logits from {} on",
           to_string(logits.dtype), first);
  check_pointer(labels, logits.rows, "cross-entropy labels");
  check_cross_entropy_state(state, logits.rows);
  stream.run_on_host([=] { cpu::cross_entropy_tile(logits, first, labels, state); });
}

void CpuKernels::cross_entropy_loss(Stream& stream, const CrossEntropyState& state,
                                    const int32_t* labels, int64_t tokens, double* loss_sum) {
  check_cross_entropy_state(state, tokens);
  check_pointer(labels, tokens, "cross-entropy labels");
  check_pointer(loss_sum, 1, "cross-entropy loss");
  stream.run_on_host([=] { cpu::cross_entropy_loss(state, labels, tokens, loss_sum); });
}

void CpuKernels::cross_entropy_gradient(Stream& stream, const Matrix& logits, int64_t first,
                                        const int32_t* labels, const CrossEntropyState& state,
                                        float scale, const Matrix& dlogits) {
  check_matrix(logits, "cross-entropy logits");
  check_matrix(dlogits, "cross-entropy dlogits");
  check_same_shape(logits, dlogits, "cross-entropy logits and dlogits");
  HR_CHECK(logits.dtype == DType::f32 && first >= 0 && logits.data != dlogits.data,
           "cross-entropy gradient of {} logits from {} on", to_string(logits.dtype), first);
  check_pointer(labels, logits.rows, "cross-entropy labels");
  check_cross_entropy_state(state, logits.rows);
  stream.run_on_host(
      [=] { cpu::cross_entropy_gradient(logits, first, labels, state, scale, dlogits); });
}

}  // namespace headrace::device::cpu
