#include "model/network_head.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::model {

using device::CrossEntropyState;
using device::Kernels;
using device::Matrix;
using device::Stream;

/// What both sweeps share.
struct NetworkHead::Sweep {
  Matrix x;  ///< the normed input, [tokens, hidden]
  float* inv_rms = nullptr;
  CrossEntropyState state;
  Matrix logits;  ///< room for one tile, fp32
};

NetworkHead::NetworkHead(const ModelConfig& config, BatchShape shape, DType dtype,
                         int64_t vocab_tile)
    : config_(config), shape_(shape), dtype_(dtype) {
  HR_CHECK(vocab_tile > 0, "vocab_tile is {}", vocab_tile);
  vocab_tile_ = std::min(vocab_tile, config.vocab_size);
  for (const ModuleSpec& module : module_specs(config)) {
    if (module.name == "norm") {
      norm_gaps_ = gaps_of(module);
    }
    // The tied head has the layout of the embedding.
    if (module.name == "embed" || module.name == "head") {
      head_gaps_ = gaps_of(module);
    }
  }
}

int64_t NetworkHead::tiles() const {
  return (config_.vocab_size + vocab_tile_ - 1) / vocab_tile_;
}

int64_t NetworkHead::rows_of(int64_t tile) const {
  return std::min(vocab_tile_, config_.vocab_size - first_row(tile));
}

/// The tile's rows of the weights or of their gradient, [rows, hidden].
Matrix NetworkHead::tile_rows(const void* packed, int64_t tile) const {
  void* const rows =
      PackedVector(packed, dtype_).at(Elements(first_row(tile)) * config_.hidden_size);
  return dense_matrix(rows, dtype_, rows_of(tile), config_.hidden_size);
}

/// [tokens, rows of the tile] in a buffer for a full tile.
Matrix NetworkHead::tile_view(const Matrix& buffer, int64_t tile) const {
  return dense_matrix(buffer.data, buffer.dtype, buffer.rows, rows_of(tile));
}

NetworkHead::Sweep NetworkHead::start(NetworkOps& ops, const Inputs& inputs) const {
  const int64_t tokens = shape_.tokens();
  Sweep sweep;
  sweep.x = ops.take_matrix(tokens, config_.hidden_size);
  sweep.inv_rms = ops.take_floats(tokens);
  sweep.state = {ops.take_floats(tokens), ops.take_floats(tokens), ops.take_floats(tokens)};
  sweep.logits = ops.take_matrix(tokens, vocab_tile_, DType::f32);
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.rms_norm_forward(stream, dense_matrix(inputs.in, dtype_, tokens, config_.hidden_size),
                             inputs.norm_weights, static_cast<float>(config_.rms_norm_eps), sweep.x,
                             sweep.inv_rms);
    kernels.cross_entropy_start(stream, sweep.state, tokens);
  });
  return sweep;
}

void NetworkHead::compute_logits(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                                 int64_t tile) const {
  ops.matmul(sweep.x, false, tile_rows(inputs.head_weights, tile), true,
             tile_view(sweep.logits, tile), false);
}

void NetworkHead::sweep_loss(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                             double* loss_sum) const {
  for (int64_t tile = 0; tile < tiles(); ++tile) {
    compute_logits(ops, inputs, sweep, tile);
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cross_entropy_tile(stream, tile_view(sweep.logits, tile), first_row(tile),
                                 inputs.labels, sweep.state);
    });
  }
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.cross_entropy_loss(stream, sweep.state, inputs.labels, shape_.tokens(), loss_sum);
  });
}

/// Returns the gradient of the normed input, fp32. Backwards over the tiles: the logits of the last
/// one are still there from the first sweep.
Matrix NetworkHead::sweep_gradients(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                                    const Gradients& gradients) const {
  const int64_t tokens = shape_.tokens();
  const Matrix dx = ops.take_matrix(tokens, config_.hidden_size, DType::f32);
  const Matrix dlogits_buffer = ops.take_matrix(tokens, vocab_tile_);
  const int64_t last = tiles() - 1;
  for (int64_t tile = last; tile >= 0; --tile) {
    if (tile != last) {
      compute_logits(ops, inputs, sweep, tile);
    }
    const Matrix dlogits = tile_view(dlogits_buffer, tile);
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cross_entropy_gradient(stream, tile_view(sweep.logits, tile), first_row(tile),
                                     inputs.labels, sweep.state, gradients.scale, dlogits);
    });
    ops.matmul(dlogits, true, sweep.x, false, tile_rows(gradients.head_weights, tile), false);
    ops.matmul(dlogits, false, tile_rows(inputs.head_weights, tile), false, dx, tile != last);
  }
  return dx;
}

void NetworkHead::forward(NetworkOps& ops, const Inputs& inputs, double* loss_sum) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const Sweep sweep = start(ops, inputs);
  sweep_loss(ops, inputs, sweep, loss_sum);
}

void NetworkHead::forward_backward(NetworkOps& ops, const Inputs& inputs, double* loss_sum,
                                   const Gradients& gradients) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const int64_t tokens = shape_.tokens();
  const int64_t hidden = config_.hidden_size;
  const Sweep sweep = start(ops, inputs);
  sweep_loss(ops, inputs, sweep, loss_sum);
  Matrix dx = sweep_gradients(ops, inputs, sweep, gradients);
  if (dtype_ != DType::f32) {
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cast(stream, dx.data, DType::f32, sweep.x.data, dtype_, Elements(tokens) * hidden);
    });
    dx = sweep.x;
  }
  ops.rms_norm_backward(dx, dense_matrix(inputs.in, dtype_, tokens, hidden), inputs.norm_weights,
                        sweep.inv_rms, dense_matrix(gradients.in, dtype_, tokens, hidden), false,
                        gradients.norm_weights);
  ops.zero_gaps(norm_gaps_, PackedVector(gradients.norm_weights, dtype_));
  ops.zero_gaps(head_gaps_, PackedVector(gradients.head_weights, dtype_));
}

double NetworkHead::flops() const {
  const double product = 2.0 * static_cast<double>(shape_.tokens()) *
                         static_cast<double>(config_.hidden_size) *
                         static_cast<double>(config_.vocab_size);
  const double recomputed =
      static_cast<double>(first_row(tiles() - 1)) / static_cast<double>(config_.vocab_size);
  return product * (3 + recomputed);
}

}  // namespace headrace::model
