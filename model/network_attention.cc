#include "model/network_attention.h"

#include <cmath>

namespace headrace::model {

using device::Kernels;
using device::Matrix;
using device::Stream;
using device::Workspace;

NetworkAttention::NetworkAttention(const ModelConfig& config, BatchShape shape, DType dtype,
                                   int64_t kv_heads)
    : config_(config), shape_(shape), dtype_(dtype) {
  const int64_t q_heads = kv_heads * (config.heads / config.kv_heads);
  const int64_t q_size = q_heads * config.head_dim;
  const int64_t kv_size = kv_heads * config.head_dim;
  attention_shape_ = {
      .batch = shape.batch,
      .seq = shape.seq,
      .q_heads = q_heads,
      .kv_heads = kv_heads,
      .head_dim = config.head_dim,
      .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim))),
      .q_stride = q_size,
      .k_stride = kv_size,
      .v_stride = kv_size,
      .out_stride = q_size};
}

device::AttentionShape NetworkAttention::shape_of(const Positions& positions) const {
  device::AttentionShape shape = attention_shape_;
  shape.visible = positions.visible;
  return shape;
}

void NetworkAttention::rotate(Kernels& kernels, Stream& stream, const Positions& positions,
                              const Matrix& x, bool inverse) const {
  kernels.rope(stream, x, x.columns / config_.head_dim, config_.head_dim, shape_.seq,
               positions.begins, positions.cos_sin, inverse);
}

/// The same memory with one head per row.
Matrix NetworkAttention::by_head(const Matrix& x) const {
  const int64_t head_dim = config_.head_dim;
  return {x.data, x.dtype, x.rows * (x.columns / head_dim), head_dim, head_dim};
}

NetworkAttention::Values NetworkAttention::take(WorkspaceStack& memory) const {
  const int64_t tokens = shape_.tokens();
  Values taken;
  taken.q = take_matrix(memory, dtype_, tokens, q_size());
  taken.k = take_matrix(memory, dtype_, tokens, kv_size());
  taken.v = take_matrix(memory, dtype_, tokens, kv_size());
  taken.out = take_matrix(memory, dtype_, tokens, q_size());
  taken.q_raw = taken.q;
  taken.k_raw = taken.k;
  if (config_.qk_norm) {
    taken.q_raw = take_matrix(memory, dtype_, tokens, q_size());
    taken.k_raw = take_matrix(memory, dtype_, tokens, kv_size());
    taken.q_inv_rms = take_floats(memory, tokens * attention_shape_.q_heads);
    taken.k_inv_rms = take_floats(memory, tokens * attention_shape_.kv_heads);
  }
  taken.log_sum_exp = take_floats(memory, tokens * attention_shape_.q_heads);
  return taken;
}

void NetworkAttention::forward(NetworkOps& ops, const Positions& positions, const Weights& weights,
                               const LinearInput& x, const Values& values) const {
  ops.linear(x, weights.packed, weights.q, values.q_raw);
  ops.linear(x, weights.packed, weights.k, values.k_raw);
  ops.linear(x, weights.packed, weights.v, values.v);
  if (config_.qk_norm) {
    ops.rms_norm(by_head(values.q_raw), weights.q_norm, config_.rms_norm_eps, by_head(values.q),
                 values.q_inv_rms);
    ops.rms_norm(by_head(values.k_raw), weights.k_norm, config_.rms_norm_eps, by_head(values.k),
                 values.k_inv_rms);
  }
  const Bytes scratch_size = ops.attention_scratch(shape_of(positions));
  ops.post_with_scratch(scratch_size, [&](Kernels& kernels, Stream& stream, Workspace scratch) {
    rotate(kernels, stream, positions, values.q, false);
    rotate(kernels, stream, positions, values.k, false);
    kernels.attention_forward(stream, shape_of(positions), dtype_, values.q.data, values.k.data,
                              values.v.data, values.out.data, values.log_sum_exp, scratch);
  });
}

NetworkAttention::Gradients NetworkAttention::backward(NetworkOps& ops, const Positions& positions,
                                                       const Weights& weights, const Values& values,
                                                       const Matrix& dout, void* dq_norm,
                                                       void* dk_norm) const {
  const int64_t tokens = shape_.tokens();
  Matrix dq = ops.take_matrix(tokens, q_size());
  Matrix dk = ops.take_matrix(tokens, kv_size());
  const Matrix dv = ops.take_matrix(tokens, kv_size());
  const Bytes scratch_size = ops.attention_scratch(shape_of(positions));
  ops.post_with_scratch(scratch_size, [&](Kernels& kernels, Stream& stream, Workspace scratch) {
    kernels.attention_backward(stream, shape_of(positions), dtype_, values.q.data, values.k.data,
                               values.v.data, values.out.data, dout.data, values.log_sum_exp,
                               dq.data, dk.data, dv.data, scratch);
    rotate(kernels, stream, positions, dq, true);
    rotate(kernels, stream, positions, dk, true);
  });
  if (config_.qk_norm) {
    ops.rms_norm_backward(by_head(dq), by_head(values.q_raw), weights.q_norm, values.q_inv_rms,
                          by_head(values.q), false, dq_norm);
    ops.rms_norm_backward(by_head(dk), by_head(values.k_raw), weights.k_norm, values.k_inv_rms,
                          by_head(values.k), false, dk_norm);
    dq = values.q;
    dk = values.k;
  }
  return {dq, dk, dv};
}

}  // namespace headrace::model
