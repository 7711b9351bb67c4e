#include "model/network_head.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::model {

using device::CrossEntropyState;
using device::Kernels;
using device::Matrix;
using device::Stream;

/// What the work on some rows shares.
struct NetworkHead::Sweep {
  Matrix x;  ///< the normed input, [tokens, hidden]
  float* inv_rms = nullptr;
  CrossEntropyState state;
  Matrix logits;               ///< room for one tile, fp32
  bool has_last_tile = false;  ///< the logits of the last tile are in it
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
  }
}

int64_t NetworkHead::rows_of(int64_t tile) const {
  return std::min(vocab_tile_, config_.vocab_size - first_row(tile));
}

/// The tile's rows in the packed weights of `rows` or in their gradient, [rows of tile, hidden].
Matrix NetworkHead::tile_rows(const void* packed, const VocabularyRange& rows, int64_t tile) const {
  void* const data =
      PackedVector(packed, dtype_).at(Elements(first_row(tile) - rows.first) * config_.hidden_size);
  return dense_matrix(data, dtype_, rows_of(tile), config_.hidden_size);
}

/// [tokens, rows of the tile] in a buffer for a full tile.
Matrix NetworkHead::tile_view(const Matrix& buffer, int64_t tile) const {
  return dense_matrix(buffer.data, buffer.dtype, buffer.rows, rows_of(tile));
}

CrossEntropyState NetworkHead::state_in(float* softmax) const {
  const int64_t tokens = softmax != nullptr ? shape_.tokens() : 0;  // null while planning
  return {softmax, softmax + tokens, softmax + 2 * tokens};
}

void NetworkHead::norm_forward(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep) const {
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.rms_norm_forward(
        stream, dense_matrix(inputs.in, dtype_, shape_.tokens(), config_.hidden_size),
        inputs.norm_weights, static_cast<float>(config_.rms_norm_eps), sweep.x, sweep.inv_rms);
  });
}

NetworkHead::Sweep NetworkHead::start(NetworkOps& ops, const Inputs& inputs, float* softmax) const {
  const VocabularyRange& rows = inputs.rows;
  HR_CHECK(rows.first % vocab_tile_ == 0 && rows.count > 0 &&
               (rows.end() % vocab_tile_ == 0 || rows.end() == config_.vocab_size),
           "vocabulary entries {} to {} in tiles of {}", rows.first, rows.end(), vocab_tile_);
  const int64_t tokens = shape_.tokens();
  Sweep sweep;
  sweep.x = ops.take_matrix(tokens, config_.hidden_size);
  sweep.inv_rms = ops.take_floats(tokens);
  sweep.state = state_in(softmax);
  sweep.logits = ops.take_matrix(tokens, vocab_tile_, DType::f32);
  norm_forward(ops, inputs, sweep);
  return sweep;
}

void NetworkHead::compute_logits(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                                 int64_t tile) const {
  ops.matmul(sweep.x, false, tile_rows(inputs.head_weights, inputs.rows, tile), true,
             tile_view(sweep.logits, tile), false);
}

void NetworkHead::sweep_loss(NetworkOps& ops, const Inputs& inputs, Sweep& sweep,
                             double* loss_sum) const {
  const int64_t first = first_tile(inputs.rows);
  if (first == 0) {
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cross_entropy_start(stream, sweep.state, shape_.tokens());
    });
  }
  for (int64_t tile = first; tile <= last_tile(inputs.rows); ++tile) {
    compute_logits(ops, inputs, sweep, tile);
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cross_entropy_tile(stream, tile_view(sweep.logits, tile), first_row(tile),
                                 inputs.labels, sweep.state);
    });
  }
  if (has_end(inputs.rows)) {
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cross_entropy_loss(stream, sweep.state, inputs.labels, shape_.tokens(), loss_sum);
    });
    sweep.has_last_tile = true;
  }
}

/// Backwards over the tiles: the logits of the last one may still be there from the first sweep.
void NetworkHead::sweep_gradients(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                                  float scale, const Matrix& dx, void* dhead_weights) const {
  const Matrix dlogits_buffer = ops.take_matrix(shape_.tokens(), vocab_tile_);
  const int64_t last = last_tile(inputs.rows);
  for (int64_t tile = last; tile >= first_tile(inputs.rows); --tile) {
    const bool is_last_of_all = tile == last && has_end(inputs.rows);
    if (!(is_last_of_all && sweep.has_last_tile)) {
      compute_logits(ops, inputs, sweep, tile);
    }
    const Matrix dlogits = tile_view(dlogits_buffer, tile);
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cross_entropy_gradient(stream, tile_view(sweep.logits, tile), first_row(tile),
                                     inputs.labels, sweep.state, scale, dlogits);
    });
    ops.matmul(dlogits, true, sweep.x, false, tile_rows(dhead_weights, inputs.rows, tile), false);
    ops.matmul(dlogits, false, tile_rows(inputs.head_weights, inputs.rows, tile), false, dx,
               !is_last_of_all);
  }
  ops.zero_gaps(gaps_of(inputs.rows, config_.hidden_size), PackedVector(dhead_weights, dtype_));
}

/// sweep.x may be overwritten: its memory takes dx in the compute dtype.
void NetworkHead::norm_backward(NetworkOps& ops, const Inputs& inputs, const Sweep& sweep,
                                Matrix dx, void* din, void* dnorm_weights) const {
  const int64_t tokens = shape_.tokens();
  const int64_t hidden = config_.hidden_size;
  if (dtype_ != DType::f32) {
    ops.post([&](Kernels& kernels, Stream& stream) {
      kernels.cast(stream, dx.data, DType::f32, sweep.x.data, dtype_, Elements(tokens) * hidden);
    });
    dx = sweep.x;
  }
  ops.rms_norm_backward(dx, dense_matrix(inputs.in, dtype_, tokens, hidden), inputs.norm_weights,
                        sweep.inv_rms, dense_matrix(din, dtype_, tokens, hidden), false,
                        dnorm_weights);
  ops.zero_gaps(norm_gaps_, PackedVector(dnorm_weights, dtype_));
}

void NetworkHead::forward(NetworkOps& ops, const Inputs& inputs, double* loss_sum) const {
  const WorkspaceStack::Scope scope(ops.memory());
  fold(ops, inputs, ops.take_floats(3 * shape_.tokens()), loss_sum);
}

void NetworkHead::forward_backward(NetworkOps& ops, const Inputs& inputs, double* loss_sum,
                                   const Gradients& gradients) const {
  const WorkspaceStack::Scope scope(ops.memory());
  Sweep sweep = start(ops, inputs, ops.take_floats(3 * shape_.tokens()));
  sweep_loss(ops, inputs, sweep, loss_sum);
  const Matrix dx = ops.take_matrix(shape_.tokens(), config_.hidden_size, DType::f32);
  sweep_gradients(ops, inputs, sweep, gradients.scale, dx, gradients.head_weights);
  norm_backward(ops, inputs, sweep, dx, gradients.in, gradients.norm_weights);
}

void NetworkHead::fold(NetworkOps& ops, const Inputs& inputs, float* softmax,
                       double* loss_sum) const {
  const WorkspaceStack::Scope scope(ops.memory());
  Sweep sweep = start(ops, inputs, softmax);
  sweep_loss(ops, inputs, sweep, loss_sum);
}

void NetworkHead::tile_gradients(NetworkOps& ops, const Inputs& inputs, float* softmax, float scale,
                                 float* dx, void* dhead_weights) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const Sweep sweep = start(ops, inputs, softmax);
  sweep_gradients(ops, inputs, sweep, scale,
                  dense_matrix(dx, DType::f32, shape_.tokens(), config_.hidden_size),
                  dhead_weights);
}

void NetworkHead::finish(NetworkOps& ops, const Inputs& inputs, const float* dx, void* din,
                         void* dnorm_weights) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const int64_t tokens = shape_.tokens();
  Sweep sweep;
  sweep.x = ops.take_matrix(tokens, config_.hidden_size);
  sweep.inv_rms = ops.take_floats(tokens);
  norm_forward(ops, inputs, sweep);
  norm_backward(ops, inputs, sweep, dense_matrix(dx, DType::f32, tokens, config_.hidden_size), din,
                dnorm_weights);
}

double NetworkHead::flops() const {
  const double product = 2.0 * static_cast<double>(shape_.tokens()) *
                         static_cast<double>(config_.hidden_size) *
                         static_cast<double>(config_.vocab_size);
  const double recomputed = static_cast<double>(first_row(last_tile(all_rows()))) /
                            static_cast<double>(config_.vocab_size);
  return product * (3 + recomputed);
}

}  // namespace headrace::model
