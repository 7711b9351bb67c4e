#include "device/cuda/cuda_kernels.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_launch.h"
#include "device/kernel_checks.h"

namespace headrace::device::cuda {

namespace {

/// Rows of rms_norm_backward whose contributions to dweight one block sums: at most 256 partial
/// sums, whatever the number of rows.
int64_t norm_rows_per_block(int64_t rows) {
  return std::max<int64_t>(8, ceil_div(rows, 256));
}

ElementwiseArguments shape_of(const Matrix& like) {
  ElementwiseArguments arguments;
  arguments.rows = like.rows;
  arguments.columns = like.columns;
  return arguments;
}

ElementwiseArguments two_to_one(const Matrix& a, const Matrix& b, const Matrix& out) {
  ElementwiseArguments arguments = shape_of(out);
  arguments.a = a.data;
  arguments.a_stride = a.stride;
  arguments.b = b.data;
  arguments.b_stride = b.stride;
  arguments.out = out.data;
  arguments.out_stride = out.stride;
  return arguments;
}

ElementwiseArguments row_of(const void* source, void* target, Elements count) {
  ElementwiseArguments arguments;
  arguments.a = source;
  arguments.out = target;
  arguments.rows = 1;
  arguments.columns = count.count();
  return arguments;
}

void post_zero(const Gpu& gpu, Stream& stream, const Matrix& matrix) {
  ElementwiseArguments arguments = shape_of(matrix);
  arguments.out = matrix.data;
  arguments.out_stride = matrix.stride;
  post_elementwise(gpu, stream, KernelId::zero_rows, matrix.dtype, matrix.dtype, arguments);
}

CrossEntropyArguments state_arguments(const CrossEntropyState& state, const int32_t* labels,
                                      int64_t tokens) {
  CrossEntropyArguments arguments;
  arguments.labels = labels;
  arguments.max = state.max;
  arguments.sum = state.sum;
  arguments.target_logit = state.target_logit;
  arguments.tokens = tokens;
  return arguments;
}

}  // namespace

CudaKernels::CudaKernels(const Gpu& gpu, Device& device, const GpuOptions& options,
                         const OpenCudnn& open_cudnn)
    : gpu_(gpu), matmul_(gpu, options.tf32), cudnn_(gpu, device, options, open_cudnn) {}

void CudaKernels::matmul(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                         bool transpose_b, const Matrix& c, bool accumulate, Workspace scratch) {
  check_matmul(a, b, c);
  check_scratch(scratch, matmul_scratch(a, transpose_a, b, transpose_b, c));
  multiply(stream, a, transpose_a, b, transpose_b, c, accumulate, nullptr, scratch);
}

void CudaKernels::matmul_bias(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                              bool transpose_b, const void* bias, const Matrix& c,
                              Workspace scratch) {
  check_matmul(a, b, c);
  check_matmul_bias(a, bias, c);
  check_scratch(scratch, matmul_scratch(a, transpose_a, b, transpose_b, c));
  if (!multiply(stream, a, transpose_a, b, transpose_b, c, false, bias, scratch)) {
    add_bias(stream, c, bias);
  }
}

bool CudaKernels::multiply(Stream& stream, const Matrix& a, bool transpose_a, const Matrix& b,
                           bool transpose_b, const Matrix& c, bool accumulate, const void* bias,
                           Workspace scratch) {
  if (a.rows > 0 && a.columns > 0 && c.rows > 0 && c.columns > 0) {
    return matmul_.post(stream, a, transpose_a, b, transpose_b, c, accumulate, bias, scratch);
  }
  if (!accumulate) {
    post_zero(gpu_, stream, c);  // an empty sum
  }
  return false;
}

Bytes CudaKernels::matmul_scratch(const Matrix& a, bool transpose_a, const Matrix& b,
                                  bool transpose_b, const Matrix& c) const {
  check_matmul_shapes(a, transpose_a, b, transpose_b, c);
  return CudaMatmul::scratch(c);
}

void CudaKernels::embedding_forward(Stream& stream, const Matrix& table, TableRange range,
                                    const int32_t* ids, const Matrix& out) {
  check_embedding_forward(table, range, ids, out);
  EmbeddingArguments arguments;
  arguments.table = table.data;
  arguments.ids = ids;
  arguments.out = out.data;
  arguments.table_stride = table.stride;
  arguments.out_stride = out.stride;
  arguments.tokens = out.rows;
  arguments.columns = out.columns;
  arguments.first = range.first;
  arguments.rows = table.rows;
  post_launch(
      gpu_, stream,
      make_launch(KernelId::embedding_forward, out.dtype, out.rows, 1, threads_for(out.columns)),
      arguments);
}

void CudaKernels::embedding_backward(Stream& stream, const Matrix& dout, const int32_t* ids,
                                     const Matrix& dtable, TableRange range) {
  check_embedding_backward(dout, ids, dtable, range);
  post_zero(gpu_, stream, dtable);
  EmbeddingArguments arguments;
  arguments.table = dout.data;
  arguments.ids = ids;
  arguments.out = dtable.data;
  arguments.table_stride = dout.stride;
  arguments.out_stride = dtable.stride;
  arguments.tokens = dout.rows;
  arguments.columns = dout.columns;
  arguments.first = range.first;
  arguments.rows = dtable.rows;
  constexpr int64_t kColumns = EmbeddingArguments::kColumns;
  post_launch(gpu_, stream,
              make_launch(KernelId::embedding_backward, dout.dtype, dout.rows,
                          ceil_div(dout.columns, kColumns), 256, kColumns * int64_t{sizeof(float)}),
              arguments);
}

void CudaKernels::rms_norm_forward(Stream& stream, const Matrix& x, const void* weight,
                                   float epsilon, const Matrix& y, float* inv_rms) {
  check_rms_norm_forward(x, weight, epsilon, y, inv_rms);
  RmsNormArguments arguments;
  arguments.x = x.data;
  arguments.weight = weight;
  arguments.y = y.data;
  arguments.inv_rms = inv_rms;
  arguments.x_stride = x.stride;
  arguments.y_stride = y.stride;
  arguments.rows = x.rows;
  arguments.columns = x.columns;
  arguments.epsilon = epsilon;
  post_launch(gpu_, stream,
              make_launch(KernelId::rms_norm_forward, x.dtype, x.rows, 1, threads_for(x.columns)),
              arguments);
}

void CudaKernels::rms_norm_backward(Stream& stream, const Matrix& dy, const Matrix& x,
                                    const void* weight, const float* inv_rms, const Matrix& dx,
                                    bool accumulate_dx, void* dweight, Workspace scratch) {
  check_rms_norm_backward(dy, x, weight, inv_rms, dx, dweight);
  check_scratch(scratch, rms_norm_backward_scratch(x.rows, x.columns));
  RmsNormArguments arguments;
  arguments.x = x.data;
  arguments.weight = weight;
  arguments.inv_rms = const_cast<float*>(inv_rms);
  arguments.dy = dy.data;
  arguments.dx = dx.data;
  arguments.partials = reinterpret_cast<float*>(scratch.data);
  arguments.x_stride = x.stride;
  arguments.dy_stride = dy.stride;
  arguments.dx_stride = dx.stride;
  arguments.rows = x.rows;
  arguments.columns = x.columns;
  arguments.rows_per_block = norm_rows_per_block(x.rows);
  arguments.accumulate_dx = accumulate_dx;
  const int64_t groups = ceil_div(x.rows, arguments.rows_per_block);
  post_launch(gpu_, stream,
              make_launch(KernelId::rms_norm_backward, x.dtype, groups, 1, threads_for(x.columns)),
              arguments);
  SumPartialsArguments sum;
  sum.partials = arguments.partials;
  sum.out = dweight;
  sum.count = groups;
  sum.columns = x.columns;
  constexpr int64_t kColumns = SumPartialsArguments::kColumns;
  post_launch(gpu_, stream,
              make_launch(KernelId::sum_partials, x.dtype, ceil_div(x.columns, kColumns), 1,
                          kColumns, kColumns * int64_t{sizeof(float)}),
              sum);
}

Bytes CudaKernels::rms_norm_backward_scratch(int64_t rows, int64_t columns) const {
  HR_CHECK(rows >= 0 && columns >= 0, "rms_norm of {} x {}", rows, columns);
  return bytes_for(Elements(columns), DType::f32) * ceil_div(rows, norm_rows_per_block(rows));
}

void CudaKernels::rope(Stream& stream, const Matrix& x, int64_t heads, int64_t head_dim,
                       int64_t seq, const int32_t* begins, const float* cos_sin, bool inverse) {
  check_rope(x, heads, head_dim, seq, cos_sin);
  RopeArguments arguments;
  arguments.x = x.data;
  arguments.begins = begins;
  arguments.cos_sin = cos_sin;
  arguments.stride = x.stride;
  arguments.heads = heads;
  arguments.head_dim = head_dim;
  arguments.seq = seq;
  arguments.sign = inverse ? -1.0F : 1.0F;
  post_launch(gpu_, stream,
              make_launch(KernelId::rope, x.dtype, x.rows, 1, threads_for(x.columns / 2)),
              arguments);
}

void CudaKernels::swiglu_forward(Stream& stream, const Matrix& gate, const Matrix& up,
                                 const Matrix& out) {
  check_swiglu_forward(gate, up, out);
  post_elementwise(gpu_, stream, KernelId::swiglu_forward, out.dtype, out.dtype,
                   two_to_one(gate, up, out));
}

void CudaKernels::swiglu_backward(Stream& stream, const Matrix& dout, const Matrix& gate,
                                  const Matrix& up, const Matrix& dgate, const Matrix& dup) {
  check_swiglu_backward(dout, gate, up, dgate, dup);
  ElementwiseArguments arguments = shape_of(dout);
  arguments.a = dout.data;
  arguments.a_stride = dout.stride;
  arguments.b = gate.data;
  arguments.b_stride = gate.stride;
  arguments.c = up.data;
  arguments.c_stride = up.stride;
  arguments.out = dgate.data;
  arguments.out_stride = dgate.stride;
  arguments.out2 = dup.data;
  arguments.out2_stride = dup.stride;
  post_elementwise(gpu_, stream, KernelId::swiglu_backward, dout.dtype, dout.dtype, arguments);
}

void CudaKernels::add(Stream& stream, const Matrix& a, const Matrix& b, const Matrix& out) {
  check_add(a, b, out);
  post_elementwise(gpu_, stream, KernelId::add_rows, out.dtype, out.dtype, two_to_one(a, b, out));
}

void CudaKernels::add_bias(Stream& stream, const Matrix& x, const void* bias) {
  check_add_bias(x, bias);
  ElementwiseArguments arguments = shape_of(x);
  arguments.a = x.data;
  arguments.a_stride = x.stride;
  arguments.b = bias;  // the same row for all: stride 0
  arguments.out = x.data;
  arguments.out_stride = x.stride;
  post_elementwise(gpu_, stream, KernelId::add_rows, x.dtype, x.dtype, arguments);
}

void CudaKernels::bias_gradient(Stream& stream, const Matrix& dy, void* dbias) {
  check_bias_gradient(dy, dbias);
  BiasGradientArguments arguments;
  arguments.dy = dy.data;
  arguments.dbias = dbias;
  arguments.stride = dy.stride;
  arguments.rows = dy.rows;
  arguments.columns = dy.columns;
  constexpr int64_t kElements = BiasGradientArguments::kColumns * BiasGradientArguments::kLanes;
  post_launch(
      gpu_, stream,
      make_launch(KernelId::bias_gradient, dy.dtype,
                  ceil_div(dy.columns, BiasGradientArguments::kColumns), 1,
                  std::min<uint32_t>(kElements, kMostThreads), kElements * int64_t{sizeof(float)}),
      arguments);
}

void CudaKernels::accumulate(Stream& stream, const void* source, DType source_dtype, float* target,
                             Elements count, bool overwrite) {
  check_accumulate(source, source_dtype, target, count);
  post_elementwise(gpu_, stream, overwrite ? KernelId::cast : KernelId::accumulate, source_dtype,
                   DType::f32, row_of(source, target, count));
}

void CudaKernels::cast(Stream& stream, const void* source, DType source_dtype, void* target,
                       DType target_dtype, Elements count) {
  check_cast(source, source_dtype, target, target_dtype, count);
  post_elementwise(gpu_, stream, KernelId::cast, source_dtype, target_dtype,
                   row_of(source, target, count));
}

void CudaKernels::attention_forward(Stream& stream, const AttentionShape& shape, DType dtype,
                                    const void* q, const void* k, const void* v, void* out,
                                    float* log_sum_exp, Workspace scratch) {
  check_scratch(scratch, attention_scratch(shape, dtype));
  check_attention_forward(shape, q, k, v, out, log_sum_exp);
  const AttentionArguments arguments = attention_arguments(shape, q, k, v, out, log_sum_exp);
  if (!cudnn_.post(stream, AttentionPass::forward, shape, dtype, arguments,
                   scratch.data + attention_scratch_bytes(shape).count())) {
    post_attention_forward(gpu_, stream, shape, dtype, arguments);
  }
}

void CudaKernels::attention_backward(Stream& stream, const AttentionShape& shape, DType dtype,
                                     const void* q, const void* k, const void* v, const void* out,
                                     const void* dout, const float* log_sum_exp, void* dq, void* dk,
                                     void* dv, Workspace scratch) {
  check_scratch(scratch, attention_scratch(shape, dtype));
  check_attention_backward(shape, q, k, v, out, dout, log_sum_exp, dq, dk, dv);
  AttentionArguments arguments =
      attention_arguments(shape, q, k, v, out, const_cast<float*>(log_sum_exp));
  arguments.dout = dout;
  arguments.delta = reinterpret_cast<float*>(scratch.data);
  arguments.dq = dq;
  arguments.dk = dk;
  arguments.dv = dv;
  if (!cudnn_.post(stream, AttentionPass::backward, shape, dtype, arguments,
                   scratch.data + attention_scratch_bytes(shape).count())) {
    post_attention_backward(gpu_, stream, shape, dtype, arguments);
  }
}

Bytes CudaKernels::attention_scratch(const AttentionShape& shape, DType dtype) const {
  check_attention_shape(shape, dtype);
  return attention_scratch_bytes(shape) + cudnn_.extra_scratch(shape, dtype);
}

void CudaKernels::cross_entropy_start(Stream& stream, const CrossEntropyState& state,
                                      int64_t tokens) {
  check_cross_entropy_start(state, tokens);
  post_launch(gpu_, stream,
              make_launch(KernelId::cross_entropy_start, DType::f32,
                          ceil_div(tokens, CrossEntropyArguments::kLossChunk), 1, 256),
              state_arguments(state, nullptr, tokens));
}

void CudaKernels::cross_entropy_tile(Stream& stream, const Matrix& logits, int64_t first,
                                     const int32_t* labels, const CrossEntropyState& state) {
  check_cross_entropy_tile(logits, first, labels, state);
  CrossEntropyArguments arguments = state_arguments(state, labels, logits.rows);
  arguments.logits = static_cast<const float*>(logits.data);
  arguments.logits_stride = logits.stride;
  arguments.columns = logits.columns;
  arguments.first = first;
  post_launch(gpu_, stream,
              make_launch(KernelId::cross_entropy_tile, DType::f32, logits.rows, 1,
                          threads_for(logits.columns)),
              arguments);
}

void CudaKernels::cross_entropy_loss(Stream& stream, const CrossEntropyState& state,
                                     const int32_t* labels, int64_t tokens, double* loss_sum) {
  check_cross_entropy_loss(state, labels, tokens, loss_sum);
  CrossEntropyArguments arguments = state_arguments(state, labels, tokens);
  arguments.loss_sum = loss_sum;
  constexpr int64_t kChunk = CrossEntropyArguments::kLossChunk;
  post_launch(gpu_, stream,
              make_launch(KernelId::cross_entropy_loss, DType::f32, 1, 1, uint32_t{kChunk},
                          kChunk * int64_t{sizeof(double)}),
              arguments);
}

void CudaKernels::cross_entropy_gradient(Stream& stream, const Matrix& logits, int64_t first,
                                         const int32_t* labels, const CrossEntropyState& state,
                                         float scale, const Matrix& dlogits) {
  check_cross_entropy_gradient(logits, first, labels, state, dlogits);
  CrossEntropyArguments arguments = state_arguments(state, labels, logits.rows);
  arguments.logits = static_cast<const float*>(logits.data);
  arguments.logits_stride = logits.stride;
  arguments.dlogits = dlogits.data;
  arguments.dlogits_stride = dlogits.stride;
  arguments.columns = logits.columns;
  arguments.first = first;
  arguments.scale = scale;
  post_launch(gpu_, stream,
              make_launch(KernelId::cross_entropy_gradient, dlogits.dtype, logits.rows, 1,
                          threads_for(logits.columns)),
              arguments);
}

}  // namespace headrace::device::cuda
