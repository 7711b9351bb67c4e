#include "model/network_block.h"

#include <cmath>

namespace headrace::model {

using device::Kernels;
using device::Matrix;
using device::Stream;
using device::Workspace;

NetworkBlock::NetworkBlock(const ModelConfig& config, BatchShape shape, DType dtype)
    : config_(config), shape_(shape), dtype_(dtype), layout_(config) {
  const int64_t q_size = config.heads * config.head_dim;
  const int64_t kv_size = config.kv_heads * config.head_dim;
  attention_shape_ = {
      .batch = shape.batch,
      .seq = shape.seq,
      .q_heads = config.heads,
      .kv_heads = config.kv_heads,
      .head_dim = config.head_dim,
      .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim))),
      .q_stride = q_size,
      .k_stride = kv_size,
      .v_stride = kv_size,
      .out_stride = q_size};
}

/// The same memory with one head per row.
Matrix NetworkBlock::by_head(const Matrix& x) const {
  const int64_t head_dim = config_.head_dim;
  return {x.data, x.dtype, x.rows * (x.columns / head_dim), head_dim, head_dim};
}

void NetworkBlock::norm(NetworkOps& ops, const Matrix& x, const void* weight, const Matrix& y,
                        float* inv_rms) const {
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.rms_norm_forward(stream, x, weight, epsilon, y, inv_rms);
  });
}

NetworkBlock::Attention NetworkBlock::take_attention(WorkspaceStack& memory) const {
  const int64_t tokens = shape_.tokens();
  const int64_t q_size = layout_.q.outputs;
  const int64_t kv_size = layout_.k.outputs;
  Attention taken;
  taken.q = take_matrix(memory, dtype_, tokens, q_size);
  taken.k = take_matrix(memory, dtype_, tokens, kv_size);
  taken.v = take_matrix(memory, dtype_, tokens, kv_size);
  taken.out = take_matrix(memory, dtype_, tokens, q_size);
  taken.q_raw = taken.q;
  taken.k_raw = taken.k;
  if (config_.qk_norm) {
    taken.q_raw = take_matrix(memory, dtype_, tokens, q_size);
    taken.k_raw = take_matrix(memory, dtype_, tokens, kv_size);
    taken.q_inv_rms = take_floats(memory, tokens * config_.heads);
    taken.k_inv_rms = take_floats(memory, tokens * config_.kv_heads);
  }
  taken.log_sum_exp = take_floats(memory, tokens * config_.heads);
  return taken;
}

NetworkBlock::Mlp NetworkBlock::take_mlp(WorkspaceStack& memory) const {
  const int64_t tokens = shape_.tokens();
  const Matrix gate = take_matrix(memory, dtype_, tokens, config_.intermediate_size);
  return {gate, take_matrix(memory, dtype_, tokens, config_.intermediate_size)};
}

/// Both passes take from it, in this order, as far as the level goes: the attention's values, the
/// residual stream behind it, the MLP's values. Without memory it only measures.
WorkspaceStack NetworkBlock::open(SavedValues saved) const {
  return saved.data == nullptr
             ? WorkspaceStack()
             : WorkspaceStack({static_cast<std::byte*>(saved.data), saved_bytes(saved.level)});
}

Bytes NetworkBlock::saved_bytes(Recompute level) const {
  WorkspaceStack memory;
  if (level != Recompute::block) {
    take_attention(memory);
    take_matrix(memory, dtype_, shape_.tokens(), config_.hidden_size);
  }
  if (level == Recompute::none) {
    take_mlp(memory);
  }
  return memory.peak();
}

/// Fills `attention` from the normed input x.
void NetworkBlock::attend(NetworkOps& ops, const float* cos_sin, const PackedVector& weights,
                          const Matrix& x, const Attention& attention) const {
  ops.linear(x, weights, layout_.q, attention.q_raw);
  ops.linear(x, weights, layout_.k, attention.k_raw);
  ops.linear(x, weights, layout_.v, attention.v);
  if (config_.qk_norm) {
    norm(ops, by_head(attention.q_raw), weights.at(layout_.q_norm), by_head(attention.q),
         attention.q_inv_rms);
    norm(ops, by_head(attention.k_raw), weights.at(layout_.k_norm), by_head(attention.k),
         attention.k_inv_rms);
  }
  const Bytes scratch_size = ops.attention_scratch(attention_shape_);
  ops.post_with_scratch(scratch_size, [&](Kernels& kernels, Stream& stream, Workspace scratch) {
    const int64_t head_dim = config_.head_dim;
    kernels.rope(stream, attention.q, config_.heads, head_dim, shape_.seq, cos_sin, false);
    kernels.rope(stream, attention.k, config_.kv_heads, head_dim, shape_.seq, cos_sin, false);
    kernels.attention_forward(stream, attention_shape_, dtype_, attention.q.data, attention.k.data,
                              attention.v.data, attention.out.data, attention.log_sum_exp, scratch);
  });
}

void NetworkBlock::gate_and_up(NetworkOps& ops, const PackedVector& weights, const Matrix& x,
                               const Mlp& mlp) const {
  ops.linear(x, weights, layout_.gate, mlp.gate);
  ops.linear(x, weights, layout_.up, mlp.up);
}

void NetworkBlock::forward(NetworkOps& ops, const float* cos_sin, const void* packed_weights,
                           const void* in, void* out, SavedValues saved) const {
  const WorkspaceStack::Scope scope(ops.memory());
  WorkspaceStack saved_memory = open(saved);
  const bool saves_attention = saved.level != Recompute::block;
  const int64_t tokens = shape_.tokens();
  const PackedVector weights(packed_weights, dtype_);
  const Matrix input = dense_matrix(in, dtype_, tokens, config_.hidden_size);
  const Matrix result = dense_matrix(out, dtype_, tokens, config_.hidden_size);
  Matrix h = result;  // in the same memory, unless it is saved
  const Matrix x = ops.take_matrix(tokens, config_.hidden_size);
  float* const inv_rms = ops.take_floats(tokens);
  const auto add = [&](const Matrix& residual, const Matrix& sum) {
    ops.post([&](Kernels& kernels, Stream& stream) { kernels.add(stream, residual, x, sum); });
  };
  {
    const WorkspaceStack::Scope attention_scope(ops.memory());
    const Attention attention = take_attention(saves_attention ? saved_memory : ops.memory());
    if (saves_attention) {
      h = take_matrix(saved_memory, dtype_, tokens, config_.hidden_size);
    }
    norm(ops, input, weights.at(layout_.input_norm), x, inv_rms);
    attend(ops, cos_sin, weights, x, attention);
    ops.linear(attention.out, weights, layout_.o, x);
    add(input, h);
  }
  const Mlp mlp = take_mlp(saved.level == Recompute::none ? saved_memory : ops.memory());
  const Matrix activated = ops.take_matrix(tokens, config_.intermediate_size);
  norm(ops, h, weights.at(layout_.post_attention_norm), x, inv_rms);
  gate_and_up(ops, weights, x, mlp);
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.swiglu_forward(stream, mlp.gate, mlp.up, activated);
  });
  ops.linear(activated, weights, layout_.down, x);
  add(h, result);
}

// Lifetimes: x holds in turn the normed input of a half and that input's gradient; what only one
// half needs is taken in that half's scope. din holds the gradient of the residual stream from the
// start.
void NetworkBlock::backward(NetworkOps& ops, const float* cos_sin, const void* packed_weights,
                            const void* in, const void* dout, void* din, void* packed_dweights,
                            SavedValues saved) const {
  const WorkspaceStack::Scope scope(ops.memory());
  WorkspaceStack saved_memory = open(saved);
  const bool has_attention = saved.level != Recompute::block;
  const bool has_mlp = saved.level == Recompute::none;
  WorkspaceStack& attention_memory = has_attention ? saved_memory : ops.memory();
  const int64_t tokens = shape_.tokens();
  const PackedVector weights(packed_weights, dtype_);
  const PackedVector dweights(packed_dweights, dtype_);
  const Matrix input = dense_matrix(in, dtype_, tokens, config_.hidden_size);
  const Matrix doutput = dense_matrix(dout, dtype_, tokens, config_.hidden_size);
  const Matrix dresidual = dense_matrix(din, dtype_, tokens, config_.hidden_size);
  const Matrix x = ops.take_matrix(tokens, config_.hidden_size);
  float* const inv_rms = ops.take_floats(tokens);
  const Attention attention = take_attention(attention_memory);
  if (!has_attention) {
    norm(ops, input, weights.at(layout_.input_norm), x, inv_rms);
    attend(ops, cos_sin, weights, x, attention);
  }
  {
    const WorkspaceStack::Scope mlp_scope(ops.memory());
    const Matrix h = take_matrix(attention_memory, dtype_, tokens, config_.hidden_size);
    const Mlp mlp = take_mlp(has_mlp ? saved_memory : ops.memory());
    if (!has_attention) {
      ops.linear(attention.out, weights, layout_.o, x);
    }
    ops.post([&](Kernels& kernels, Stream& stream) {
      if (!has_attention) {
        kernels.add(stream, input, x, h);
      }
      if (din != dout) {
        stream.copy_async(din, dout, bytes_for(Elements(tokens) * config_.hidden_size, dtype_));
      }
    });
    norm(ops, h, weights.at(layout_.post_attention_norm), x, inv_rms);
    if (!has_mlp) {
      gate_and_up(ops, weights, x, mlp);
    }
    mlp_backward(ops, weights, dweights, h, mlp, doutput, dresidual, x, inv_rms);
  }
  attention_backward(ops, cos_sin, weights, dweights, input, dresidual, attention, x, inv_rms);
  ops.zero_gaps(layout_.gaps, dweights);
}

/// Adds the MLP half's gradient to dh, which holds dout already (and may be the same memory). x is
/// the normed h.
void NetworkBlock::mlp_backward(NetworkOps& ops, const PackedVector& weights,
                                const PackedVector& dweights, const Matrix& h, const Mlp& mlp,
                                const Matrix& dout, const Matrix& dh, const Matrix& x,
                                const float* inv_rms) const {
  const Matrix activated = ops.take_matrix(shape_.tokens(), config_.intermediate_size);
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.swiglu_forward(stream, mlp.gate, mlp.up, activated);
  });
  ops.linear_weight_gradient(dout, activated, layout_.down, dweights);
  const Matrix& dactivated = activated;
  ops.linear_input_gradient(dout, weights, layout_.down, dactivated, false);
  const Matrix& dgate = mlp.gate;
  const Matrix& dup = mlp.up;
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.swiglu_backward(stream, dactivated, mlp.gate, mlp.up, dgate, dup);
  });
  ops.linear_weight_gradient(dgate, x, layout_.gate, dweights);
  ops.linear_weight_gradient(dup, x, layout_.up, dweights);
  const Matrix& dx = x;
  ops.linear_input_gradient(dgate, weights, layout_.gate, dx, false);
  ops.linear_input_gradient(dup, weights, layout_.up, dx, true);
  ops.rms_norm_backward(dx, h, weights.at(layout_.post_attention_norm), inv_rms, dh, true,
                        dweights.at(layout_.post_attention_norm));
}

/// Adds the attention half's gradient to dh, the gradient of the residual stream behind it.
void NetworkBlock::attention_backward(NetworkOps& ops, const float* cos_sin,
                                      const PackedVector& weights, const PackedVector& dweights,
                                      const Matrix& in, const Matrix& dh,
                                      const Attention& attention, const Matrix& x,
                                      float* inv_rms) const {
  const int64_t tokens = shape_.tokens();
  const Matrix dattended = ops.take_matrix(tokens, layout_.q.outputs);
  Matrix dq = ops.take_matrix(tokens, layout_.q.outputs);
  Matrix dk = ops.take_matrix(tokens, layout_.k.outputs);
  const Matrix dv = ops.take_matrix(tokens, layout_.v.outputs);
  ops.linear_weight_gradient(dh, attention.out, layout_.o, dweights);
  ops.linear_input_gradient(dh, weights, layout_.o, dattended, false);
  heads_backward(ops, cos_sin, weights, dweights, attention, dattended, dq, dk, dv);
  norm(ops, in, weights.at(layout_.input_norm), x, inv_rms);  // again: cheaper than keeping it
  ops.linear_weight_gradient(dq, x, layout_.q, dweights);
  ops.linear_weight_gradient(dk, x, layout_.k, dweights);
  ops.linear_weight_gradient(dv, x, layout_.v, dweights);
  const Matrix& dx = x;
  ops.linear_input_gradient(dq, weights, layout_.q, dx, false);
  ops.linear_input_gradient(dk, weights, layout_.k, dx, true);
  ops.linear_input_gradient(dv, weights, layout_.v, dx, true);
  ops.rms_norm_backward(dx, in, weights.at(layout_.input_norm), inv_rms, dh, true,
                        dweights.at(layout_.input_norm));
}

/// Gradients of the projections' outputs; dq and dk may move to the memory of attention.q and .k.
void NetworkBlock::heads_backward(NetworkOps& ops, const float* cos_sin,
                                  const PackedVector& weights, const PackedVector& dweights,
                                  const Attention& attention, const Matrix& dattended, Matrix& dq,
                                  Matrix& dk, const Matrix& dv) const {
  const Bytes scratch_size = ops.attention_scratch(attention_shape_);
  ops.post_with_scratch(scratch_size, [&](Kernels& kernels, Stream& stream, Workspace scratch) {
    kernels.attention_backward(stream, attention_shape_, dtype_, attention.q.data, attention.k.data,
                               attention.v.data, attention.out.data, dattended.data,
                               attention.log_sum_exp, dq.data, dk.data, dv.data, scratch);
    kernels.rope(stream, dq, config_.heads, config_.head_dim, shape_.seq, cos_sin, true);
    kernels.rope(stream, dk, config_.kv_heads, config_.head_dim, shape_.seq, cos_sin, true);
  });
  if (config_.qk_norm) {
    ops.rms_norm_backward(by_head(dq), by_head(attention.q_raw), weights.at(layout_.q_norm),
                          attention.q_inv_rms, by_head(attention.q), false,
                          dweights.at(layout_.q_norm));
    ops.rms_norm_backward(by_head(dk), by_head(attention.k_raw), weights.at(layout_.k_norm),
                          attention.k_inv_rms, by_head(attention.k), false,
                          dweights.at(layout_.k_norm));
    dq = attention.q;
    dk = attention.k;
  }
}

double NetworkBlock::linear_flops() const {
  return linear_flops(
      {&layout_.q, &layout_.k, &layout_.v, &layout_.o, &layout_.gate, &layout_.up, &layout_.down});
}

double NetworkBlock::linear_flops(std::initializer_list<const LinearLayout*> layers) const {
  double per_token = 0;
  for (const LinearLayout* layer : layers) {
    per_token += 2.0 * static_cast<double>(layer->outputs) * static_cast<double>(layer->inputs);
  }
  return per_token * static_cast<double>(shape_.tokens());
}

/// Scores and weighted sum over the causal half of the positions.
double NetworkBlock::attention_flops() const {
  const auto seq = static_cast<double>(shape_.seq);
  const double pairs = static_cast<double>(shape_.batch) * seq * (seq + 1) / 2;
  return 4.0 * static_cast<double>(layout_.q.outputs) * pairs;
}

double NetworkBlock::forward_flops() const {
  return linear_flops() + attention_flops();
}

// Two products per linear layer and five per attention score; then what is computed again.
double NetworkBlock::backward_flops(Recompute level) const {
  double flops = 2 * linear_flops() + 2.5 * attention_flops();
  if (level != Recompute::none) {
    flops += linear_flops({&layout_.gate, &layout_.up});
  }
  if (level == Recompute::block) {
    flops += linear_flops({&layout_.q, &layout_.k, &layout_.v, &layout_.o}) + attention_flops();
  }
  return flops;
}

}  // namespace headrace::model
