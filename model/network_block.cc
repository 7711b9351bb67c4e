#include "model/network_block.h"

namespace headrace::model {

using device::Kernels;
using device::Matrix;
using device::Stream;

NetworkBlock::NetworkBlock(const ModelConfig& config, BatchShape shape, DType dtype)
    : config_(config),
      shape_(shape),
      dtype_(dtype),
      layout_(config),
      attention_(config, shape, dtype, config.kv_heads) {}

void NetworkBlock::norm(NetworkOps& ops, const Matrix& x, const void* weight, const Matrix& y,
                        float* inv_rms) const {
  ops.rms_norm(x, weight, config_.rms_norm_eps, y, inv_rms);
}

NetworkAttention::Weights NetworkBlock::attention_weights(const PackedVector& weights) const {
  NetworkAttention::Weights parts{weights, layout_.q, layout_.k, layout_.v};
  if (config_.qk_norm) {
    parts.q_norm = weights.at(layout_.q_norm);
    parts.k_norm = weights.at(layout_.k_norm);
  }
  return parts;
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
    attention_.take(memory);
    take_matrix(memory, dtype_, shape_.tokens(), config_.hidden_size);
  }
  if (level == Recompute::none) {
    take_mlp(memory);
  }
  return memory.peak();
}

void NetworkBlock::attention_forward(NetworkOps& ops, const Positions& positions,
                                     const PackedVector& weights, const Matrix& x,
                                     const NetworkAttention::Values& attention) const {
  const WorkspaceStack::Scope scope(ops.memory());
  attention_.forward(ops, positions, attention_weights(weights), ops.linear_input(x), attention);
}

void NetworkBlock::gate_and_up(NetworkOps& ops, const PackedVector& weights, const Matrix& x,
                               const Mlp& mlp) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const LinearInput input = ops.linear_input(x);
  ops.linear(input, weights, layout_.gate, mlp.gate);
  ops.linear(input, weights, layout_.up, mlp.up);
}

void NetworkBlock::forward(NetworkOps& ops, const Positions& positions, const void* packed_weights,
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
    const NetworkAttention::Values attention =
        attention_.take(saves_attention ? saved_memory : ops.memory());
    if (saves_attention) {
      h = take_matrix(saved_memory, dtype_, tokens, config_.hidden_size);
    }
    norm(ops, input, weights.at(layout_.input_norm), x, inv_rms);
    attention_forward(ops, positions, weights, x, attention);
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
void NetworkBlock::backward(NetworkOps& ops, const Positions& positions, const void* packed_weights,
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
  const NetworkAttention::Values attention = attention_.take(attention_memory);
  if (!has_attention) {
    norm(ops, input, weights.at(layout_.input_norm), x, inv_rms);
    attention_forward(ops, positions, weights, x, attention);
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
  attention_backward(ops, positions, weights, dweights, input, dresidual, attention, x, inv_rms);
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
void NetworkBlock::attention_backward(NetworkOps& ops, const Positions& positions,
                                      const PackedVector& weights, const PackedVector& dweights,
                                      const Matrix& in, const Matrix& dh,
                                      const NetworkAttention::Values& attention, const Matrix& x,
                                      float* inv_rms) const {
  const Matrix dattended = ops.take_matrix(shape_.tokens(), layout_.q.outputs);
  ops.linear_weight_gradient(dh, attention.out, layout_.o, dweights);
  ops.linear_input_gradient(dh, weights, layout_.o, dattended, false);
  const auto [dq, dk, dv] =
      attention_.backward(ops, positions, attention_weights(weights), attention, dattended,
                          dweights.at(layout_.q_norm), dweights.at(layout_.k_norm));
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

/// Outputs of layers with the same input.
void NetworkBlock::add_outputs(std::initializer_list<const LinearLayout*> layers,
                               BlockFlops& flops) const {
  const auto tokens = static_cast<double>(shape_.tokens());
  const auto inputs = static_cast<double>((*layers.begin())->inputs);
  flops.rounded += tokens * inputs;
  for (const LinearLayout* layer : layers) {
    const double weights = static_cast<double>(layer->outputs) * inputs;
    flops.linear_forward += 2 * weights * tokens;
    flops.rounded += weights;
  }
}

void NetworkBlock::add_attention_layers(BlockFlops& flops) const {
  add_outputs({&layout_.q, &layout_.k, &layout_.v}, flops);
  add_outputs({&layout_.o}, flops);
}

/// Scores and weighted sum over the causal half of the positions, as far as the window reaches.
double NetworkBlock::attention_flops() const {
  const auto seq = static_cast<double>(shape_.seq);
  const auto window =
      static_cast<double>(std::min(shape_.seq, config_.sliding_window.value_or(shape_.seq)));
  const double pairs =
      static_cast<double>(shape_.batch) * (window * (window + 1) / 2 + (seq - window) * window);
  return 4.0 * static_cast<double>(layout_.q.outputs) * pairs;
}

BlockFlops NetworkBlock::forward_flops() const {
  BlockFlops flops;
  add_attention_layers(flops);
  add_outputs({&layout_.gate, &layout_.up}, flops);
  add_outputs({&layout_.down}, flops);
  flops.rest = attention_flops();
  return flops;
}

// Two products per linear layer and five per attention score; then what is computed again.
BlockFlops NetworkBlock::backward_flops(Recompute level) const {
  BlockFlops flops;
  flops.rest = 2 * forward_flops().linear_forward + 2.5 * attention_flops();
  if (level != Recompute::none) {
    add_outputs({&layout_.gate, &layout_.up}, flops);
  }
  if (level == Recompute::block) {
    add_attention_layers(flops);
    flops.rest += attention_flops();
  }
  return flops;
}

}  // namespace headrace::model
