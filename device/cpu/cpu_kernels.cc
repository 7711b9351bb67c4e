#include "device/cpu/cpu_kernels.h"

#include <cmath>

#include "base/check.h"
#include "device/cpu/row_kernels.h"
#include "device/cpu/scratch.h"
#include "device/kernel_checks.h"

// Tasks capture their arguments by value: the caller's references end with the call.
namespace headrace::device::cpu {

CpuKernels::CpuKernels() : matmul_(products_, prefers_bf16_instructions()), attention_(products_) {}

void CpuKernels::matmul(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                        bool transpose_b, const Matrix& c, bool accumulate, Workspace scratch) {
  check_matmul(a, b, c);
  check_scratch(scratch, matmul_scratch(a, transpose_a, b, transpose_b, c));
  stream.run_on_host(
      [=, this] { matmul_.run(a, transpose_a, b, transpose_b, c, accumulate, scratch); });
}

void CpuKernels::matmul_bias(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                             bool transpose_b, const void* bias, const Matrix& c,
                             Workspace scratch) {
  check_matmul_bias(a, bias, c);
  matmul(stream, a, transpose_a, b, transpose_b, c, false, scratch);
  add_bias(stream, c, bias);
}

Bytes CpuKernels::matmul_scratch(const Matrix& a, bool transpose_a, const Matrix& b,
                                 bool transpose_b, const Matrix& c) const {
  check_matmul_shapes(a, transpose_a, b, transpose_b, c);
  return matmul_.scratch(a, transpose_a, b, transpose_b, c);
}

void CpuKernels::quantize(Stream& stream, const Matrix& source, const ScaledMatrix& target,
                          Workspace scratch) {
  check_quantize(source, target);
  check_scratch(scratch, kQuantizeScratch);
  stream.run_on_host([=] { cpu::quantize(source, target, scratch); });
}

void CpuKernels::matmul_scaled(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b,
                               const void* bias, const Matrix& c, bool accumulate,
                               Workspace scratch) {
  check_matmul_scaled(a, b, bias, c, accumulate);
  check_scratch(scratch, matmul_scaled_scratch(a, b, c));
  stream.run_on_host([=, this] {
    matmul_.run(codes_of(a), false, codes_of(b), true, c, accumulate, scratch, *a.scale * *b.scale);
  });
  if (bias != nullptr) {
    add_bias(stream, c, bias);
  }
}

Bytes CpuKernels::matmul_scaled_scratch(const ScaledMatrix& a, const ScaledMatrix& b,
                                        const Matrix& c) const {
  check_matmul_scaled_shapes(a, b, c);
  return matmul_.scratch(codes_of(a), false, codes_of(b), true, c);
}

void CpuKernels::embedding_forward(Stream& stream, const Matrix& table, TableRange range,
                                   const int32_t* ids, const Matrix& out) {
  check_embedding_forward(table, range, ids, out);
  stream.run_on_host([=] { cpu::embedding_forward(table, range, ids, out); });
}

void CpuKernels::embedding_backward(Stream& stream, const Matrix& dout, const int32_t* ids,
                                    const Matrix& dtable, TableRange range) {
  check_embedding_backward(dout, ids, dtable, range);
  stream.run_on_host([=] { cpu::embedding_backward(dout, ids, dtable, range); });
}

void CpuKernels::rms_norm_forward(Stream& stream, const Matrix& x, const void* weight,
                                  float epsilon, const Matrix& y, float* inv_rms) {
  check_rms_norm_forward(x, weight, epsilon, y, inv_rms);
  stream.run_on_host([=] { cpu::rms_norm_forward(x, weight, epsilon, y, inv_rms); });
}

void CpuKernels::rms_norm_backward(Stream& stream, const Matrix& dy, const Matrix& x,
                                   const void* weight, const float* inv_rms, const Matrix& dx,
                                   bool accumulate_dx, void* dweight, Workspace scratch) {
  check_rms_norm_backward(dy, x, weight, inv_rms, dx, dweight);
  check_scratch(scratch, rms_norm_backward_scratch(x.rows, x.columns));
  stream.run_on_host(
      [=] { cpu::rms_norm_backward(dy, x, weight, inv_rms, dx, accumulate_dx, dweight, scratch); });
}

Bytes CpuKernels::rms_norm_backward_scratch(int64_t rows, int64_t columns) const {
  HR_CHECK(rows >= 0 && columns >= 0, "rms_norm of {} x {}", rows, columns);
  return cpu::rms_norm_backward_scratch(rows, columns);
}

void CpuKernels::rope(Stream& stream, const Matrix& x, int64_t heads, int64_t head_dim, int64_t seq,
                      const int32_t* begins, const float* cos_sin, bool inverse) {
  check_rope(x, heads, head_dim, seq, cos_sin);
  stream.run_on_host([=] { cpu::rope(x, heads, head_dim, seq, begins, cos_sin, inverse); });
}

void CpuKernels::swiglu_forward(Stream& stream, const Matrix& gate, const Matrix& up,
                                const Matrix& out) {
  check_swiglu_forward(gate, up, out);
  stream.run_on_host([=] { cpu::swiglu_forward(gate, up, out); });
}

void CpuKernels::swiglu_backward(Stream& stream, const Matrix& dout, const Matrix& gate,
                                 const Matrix& up, const Matrix& dgate, const Matrix& dup) {
  check_swiglu_backward(dout, gate, up, dgate, dup);
  stream.run_on_host([=] { cpu::swiglu_backward(dout, gate, up, dgate, dup); });
}

void CpuKernels::add(Stream& stream, const Matrix& a, const Matrix& b, const Matrix& out) {
  check_add(a, b, out);
  stream.run_on_host([=] { cpu::add(a, b, out); });
}

void CpuKernels::add_bias(Stream& stream, const Matrix& x, const void* bias) {
  check_add_bias(x, bias);
  stream.run_on_host([=] { cpu::add_bias(x, bias); });
}

void CpuKernels::bias_gradient(Stream& stream, const Matrix& dy, void* dbias) {
  check_bias_gradient(dy, dbias);
  stream.run_on_host([=] { cpu::bias_gradient(dy, dbias); });
}

void CpuKernels::accumulate(Stream& stream, const void* source, DType source_dtype, float* target,
                            Elements count, bool overwrite) {
  check_accumulate(source, source_dtype, target, count);
  stream.run_on_host([=] { cpu::accumulate(source, source_dtype, target, count, overwrite); });
}

void CpuKernels::cast(Stream& stream, const void* source, DType source_dtype, void* target,
                      DType target_dtype, Elements count) {
  check_cast(source, source_dtype, target, target_dtype, count);
  stream.run_on_host([=] { cpu::cast(source, source_dtype, target, target_dtype, count); });
}

void CpuKernels::optimizer_update(Stream& stream, const OptimizerStep& step,
                                  const OptimizerArrays& arrays, int32_t* not_finite) {
  check_optimizer_update(step, arrays, not_finite);
  stream.run_on_host([=] {
    if (!cpu::optimizer_update(step, arrays)) {
      *not_finite = 1;
    }
  });
}

void CpuKernels::gradient_statistics(Stream& stream, const void* gradient, DType dtype,
                                     Elements count, double* sums) {
  check_gradient_statistics(gradient, dtype, count, sums);
  stream.run_on_host([=] { cpu::gradient_statistics(gradient, dtype, count, sums); });
}

void CpuKernels::attention_forward(Stream& stream, const AttentionShape& shape, DType dtype,
                                   const void* q, const void* k, const void* v, void* out,
                                   float* log_sum_exp, Workspace scratch) {
  check_attention_forward(shape, q, k, v, out, log_sum_exp);
  check_scratch(scratch, attention_scratch(shape, dtype));
  stream.run_on_host(
      [=, this] { attention_.forward(shape, dtype, q, k, v, out, log_sum_exp, scratch); });
}

void CpuKernels::attention_backward(Stream& stream, const AttentionShape& shape, DType dtype,
                                    const void* q, const void* k, const void* v, const void* out,
                                    const void* dout, const float* log_sum_exp, void* dq, void* dk,
                                    void* dv, Workspace scratch) {
  check_attention_backward(shape, q, k, v, out, dout, log_sum_exp, dq, dk, dv);
  check_scratch(scratch, attention_scratch(shape, dtype));
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
  check_cross_entropy_start(state, tokens);
  stream.run_on_host([=] { cpu::cross_entropy_start(state, tokens); });
}

void CpuKernels::cross_entropy_tile(Stream& stream, const Matrix& logits, int64_t first,
                                    const int32_t* labels, const CrossEntropyState& state) {
  check_cross_entropy_tile(logits, first, labels, state);
  stream.run_on_host([=] { cpu::cross_entropy_tile(logits, first, labels, state); });
}

void CpuKernels::cross_entropy_loss(Stream& stream, const CrossEntropyState& state,
                                    const int32_t* labels, int64_t tokens, double* loss_sum) {
  check_cross_entropy_loss(state, labels, tokens, loss_sum);
  stream.run_on_host([=] { cpu::cross_entropy_loss(state, labels, tokens, loss_sum); });
}

void CpuKernels::cross_entropy_gradient(Stream& stream, const Matrix& logits, int64_t first,
                                        const int32_t* labels, const CrossEntropyState& state,
                                        float scale, const Matrix& dlogits) {
  check_cross_entropy_gradient(logits, first, labels, state, dlogits);
  stream.run_on_host(
      [=] { cpu::cross_entropy_gradient(logits, first, labels, state, scale, dlogits); });
}

}  // namespace headrace::device::cpu
