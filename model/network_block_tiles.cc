#include "model/network_block_tiles.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::model {

using device::Kernels;
using device::Matrix;
using device::Stream;

namespace {

BlockCut pieces_of(const ModelConfig& config, int64_t piece_size) {
  HR_CHECK(piece_size > 0, "pieces of {} columns", piece_size);
  const int64_t per_kv_head = q_rows(config, {0, 1}).count;
  return {std::clamp<int64_t>(piece_size / per_kv_head, 1, config.kv_heads),
          std::min(piece_size, config.intermediate_size)};
}

/// Heads of the last piece.
int64_t heads_left(const ModelConfig& config, const BlockCut& pieces) {
  return attention_range(config, pieces, pieces.attention_tiles(config) - 1).count;
}

void check_range(const TileRange& tile, int64_t size, int64_t piece) {
  HR_CHECK(
      tile.first % piece == 0 && tile.count > 0 && (tile.end() % piece == 0 || tile.end() == size),
      "a tile from {} to {} of {} in pieces of {}", tile.first, tile.end(), size, piece);
}

/// Calls body(piece, piece within the tile) for the pieces of a tile, the last ones first where
/// asked.
template <class Body>
void for_pieces(const TileRange& tile, int64_t piece, bool backwards, const Body& body) {
  const int64_t count = ceil_div(tile.count, piece);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = (backwards ? count - 1 - i : i) * piece;
    const int64_t length = std::min(piece, tile.count - first);
    body(TileRange{tile.first + first, length}, TileRange{first, length});
  }
}

}  // namespace

NetworkBlockTiles::NetworkBlockTiles(const ModelConfig& config, BatchShape shape, DType dtype,
                                     int64_t piece_size)
    : config_(config),
      shape_(shape),
      dtype_(dtype),
      pieces_(pieces_of(config, piece_size)),
      attention_norms_(config),
      mlp_norms_(config),
      full_piece_(config, shape, dtype, pieces_.kv_heads),
      last_piece_(config, shape, dtype, heads_left(config, pieces_)) {}

Matrix NetworkBlockTiles::hidden(const void* data) const {
  return dense_matrix(data, dtype_, shape_.tokens(), config_.hidden_size);
}

Matrix NetworkBlockTiles::sum_of(const float* sum) const {
  return dense_matrix(sum, DType::f32, shape_.tokens(), config_.hidden_size);
}

/// Where in a sum those of the gradients of q_norm, then k_norm, begin.
int64_t NetworkBlockTiles::norm_sums() const {
  return shape_.tokens() * config_.hidden_size;
}

Bytes NetworkBlockTiles::sum_bytes() const {
  const Elements gradients(config_.qk_norm ? 2 * config_.head_dim : 0);
  return bytes_for(Elements(norm_sums()) + gradients, DType::f32);
}

/// Takes memory of the caller's scope.
Matrix NetworkBlockTiles::normed(NetworkOps& ops, const void* in, const void* weight) const {
  const Matrix x = ops.take_matrix(shape_.tokens(), config_.hidden_size);
  ops.rms_norm(hidden(in), weight, config_.rms_norm_eps, x, ops.take_floats(shape_.tokens()));
  return x;
}

const NetworkAttention& NetworkBlockTiles::heads(int64_t kv_heads) const {
  return kv_heads == pieces_.kv_heads ? full_piece_ : last_piece_;
}

/// `piece` counts from the tile's first head.
NetworkAttention::Weights NetworkBlockTiles::attention_weights(const PackedVector& norms,
                                                               const PackedVector& weights,
                                                               const AttentionTileLayout& layout,
                                                               const TileRange& piece) const {
  const TileRange q = q_rows(config_, piece);
  const TileRange kv = kv_rows(config_, piece);
  NetworkAttention::Weights parts{weights, layout.q.rows(q.first, q.count),
                                  layout.k.rows(kv.first, kv.count),
                                  layout.v.rows(kv.first, kv.count)};
  if (config_.qk_norm) {
    parts.q_norm = norms.at(attention_norms_.q_norm);
    parts.k_norm = norms.at(attention_norms_.k_norm);
  }
  return parts;
}

/// out = residual + (sum + bias), rounded after each step as the sum of a whole product is.
void NetworkBlockTiles::add_sum(NetworkOps& ops, const float* sum, const void* bias,
                                const Matrix& residual, const Matrix& out) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const Matrix rounded = ops.take_matrix(shape_.tokens(), config_.hidden_size);
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.cast(stream, sum, DType::f32, rounded.data, dtype_,
                 Elements(rounded.rows) * rounded.columns);
    if (bias != nullptr) {
      kernels.add_bias(stream, rounded, bias);
    }
    kernels.add(stream, residual, rounded, out);
  });
}

void NetworkBlockTiles::attention_forward(NetworkOps& ops, const Positions& positions,
                                          const Tile& tile, const void* in, float* sum,
                                          void* out) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const PackedVector norms(tile.norms, dtype_);
  const PackedVector weights(tile.weights, dtype_);
  check_range(tile.range, config_.kv_heads, pieces_.kv_heads);
  const AttentionTileLayout layout(config_, tile.range);
  const LinearInput x = ops.linear_input(normed(ops, in, norms.at(attention_norms_.input_norm)));
  for_pieces(tile.range, pieces_.kv_heads, false,
             [&](const TileRange& piece, const TileRange& within) {
               const WorkspaceStack::Scope piece_scope(ops.memory());
               const NetworkAttention& attention = heads(piece.count);
               const NetworkAttention::Values values = attention.take(ops.memory());
               attention.forward(ops, positions, attention_weights(norms, weights, layout, within),
                                 x, values);
               const TileRange q = q_rows(config_, within);
               ops.linear_part(values.out, weights, layout.o.columns(q.first, q.count), sum_of(sum),
                               piece.first > 0);
             });
  if (tile.range.end() == config_.kv_heads) {
    add_sum(ops, sum, attention_norms_.o_bias ? norms.at(*attention_norms_.o_bias) : nullptr,
            hidden(in), hidden(out));
  }
}

/// Up to the input of down_proj; takes memory of the caller's scope.
NetworkBlockTiles::Mlp NetworkBlockTiles::mlp_piece(NetworkOps& ops, const PackedVector& weights,
                                                    const MlpTileLayout& layout,
                                                    const TileRange& piece,
                                                    const LinearInput& x) const {
  const Matrix gate = ops.take_matrix(shape_.tokens(), piece.count);
  const Matrix up = ops.take_matrix(shape_.tokens(), piece.count);
  const Matrix activated = ops.take_matrix(shape_.tokens(), piece.count);
  ops.linear(x, weights, layout.gate.rows(piece.first, piece.count), gate);
  ops.linear(x, weights, layout.up.rows(piece.first, piece.count), up);
  ops.post([&](Kernels& kernels, Stream& stream) {
    kernels.swiglu_forward(stream, gate, up, activated);
  });
  return {gate, up, activated};
}

void NetworkBlockTiles::mlp_forward(NetworkOps& ops, const Tile& tile, const void* in, float* sum,
                                    void* out) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const PackedVector norms(tile.norms, dtype_);
  const PackedVector weights(tile.weights, dtype_);
  check_range(tile.range, config_.intermediate_size, pieces_.mlp_rows);
  const MlpTileLayout layout(config_, tile.range);
  const LinearInput x = ops.linear_input(normed(ops, in, norms.at(mlp_norms_.norm)));
  for_pieces(
      tile.range, pieces_.mlp_rows, false, [&](const TileRange& piece, const TileRange& within) {
        const WorkspaceStack::Scope piece_scope(ops.memory());
        const Mlp mlp = mlp_piece(ops, weights, layout, within, x);
        ops.linear_part(mlp.activated, weights, layout.down.columns(within.first, within.count),
                        sum_of(sum), piece.first > 0);
      });
  if (tile.range.end() == config_.intermediate_size) {
    add_sum(ops, sum, mlp_norms_.down_bias ? norms.at(*mlp_norms_.down_bias) : nullptr, hidden(in),
            hidden(out));
  }
}

void NetworkBlockTiles::mlp_backward(NetworkOps& ops, const Tile& tile, const void* in,
                                     const void* dout, float* sum, void* packed_dweights) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const PackedVector norms(tile.norms, dtype_);
  const PackedVector weights(tile.weights, dtype_);
  const PackedVector dweights(packed_dweights, dtype_);
  check_range(tile.range, config_.intermediate_size, pieces_.mlp_rows);
  const MlpTileLayout layout(config_, tile.range);
  const Matrix dx = sum_of(sum);
  const Matrix x = normed(ops, in, norms.at(mlp_norms_.norm));
  const LinearInput input = ops.linear_input(x);
  for_pieces(tile.range, pieces_.mlp_rows, true,
             [&](const TileRange& piece, const TileRange& within) {
               const WorkspaceStack::Scope piece_scope(ops.memory());
               const Mlp mlp = mlp_piece(ops, weights, layout, within, input);
               const LinearLayout gate_rows = layout.gate.rows(within.first, within.count);
               const LinearLayout up_rows = layout.up.rows(within.first, within.count);
               const LinearLayout down = layout.down.columns(within.first, within.count);
               ops.linear_weight_gradient(hidden(dout), mlp.activated, down, dweights);
               const Matrix& dactivated = mlp.activated;
               ops.linear_input_gradient(hidden(dout), weights, down, dactivated, false);
               const Matrix& dgate = mlp.gate;
               const Matrix& dup = mlp.up;
               ops.post([&](Kernels& kernels, Stream& stream) {
                 kernels.swiglu_backward(stream, dactivated, mlp.gate, mlp.up, dgate, dup);
               });
               ops.linear_weight_gradient(dgate, x, gate_rows, dweights);
               ops.linear_weight_gradient(dup, x, up_rows, dweights);
               const bool is_first = piece.end() == config_.intermediate_size;
               ops.linear_input_gradient(dgate, weights, gate_rows, dx, !is_first);
               ops.linear_input_gradient(dup, weights, up_rows, dx, true);
             });
  ops.zero_gaps(layout.gaps, dweights);
}

void NetworkBlockTiles::attention_backward(NetworkOps& ops, const Positions& positions,
                                           const Tile& tile, const void* in, const void* dout,
                                           float* sum, void* packed_dweights) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const PackedVector norms(tile.norms, dtype_);
  const PackedVector weights(tile.weights, dtype_);
  const PackedVector dweights(packed_dweights, dtype_);
  check_range(tile.range, config_.kv_heads, pieces_.kv_heads);
  const AttentionTileLayout layout(config_, tile.range);
  const Matrix dx = sum_of(sum);
  const Matrix x = normed(ops, in, norms.at(attention_norms_.input_norm));
  const LinearInput input = ops.linear_input(x);
  for_pieces(
      tile.range, pieces_.kv_heads, true, [&](const TileRange& piece, const TileRange& within) {
        const WorkspaceStack::Scope piece_scope(ops.memory());
        const bool is_first = piece.end() == config_.kv_heads;
        const NetworkAttention& attention = heads(piece.count);
        const auto parts = attention_weights(norms, weights, layout, within);
        const TileRange q = q_rows(config_, within);
        const LinearLayout o = layout.o.columns(q.first, q.count);
        const NetworkAttention::Values values = attention.take(ops.memory());
        attention.forward(ops, positions, parts, input, values);
        ops.linear_weight_gradient(hidden(dout), values.out, o, dweights);
        const Matrix dattended = ops.take_matrix(shape_.tokens(), q.count);
        ops.linear_input_gradient(hidden(dout), weights, o, dattended, false);
        const Elements per_norm(config_.head_dim);
        const PackedVector dnorms(ops.take_matrix(2, config_.head_dim).data, dtype_);
        const auto [dq, dk, dv] = attention.backward(ops, positions, parts, values, dattended,
                                                     dnorms.at(Elements(0)), dnorms.at(per_norm));
        if (config_.qk_norm) {
          ops.post([&](Kernels& kernels, Stream& stream) {
            kernels.accumulate(stream, dnorms.at(Elements(0)), dtype_, sum + norm_sums(),
                               per_norm * 2, is_first);
          });
        }
        ops.linear_weight_gradient(dq, x, parts.q, dweights);
        ops.linear_weight_gradient(dk, x, parts.k, dweights);
        ops.linear_weight_gradient(dv, x, parts.v, dweights);
        ops.linear_input_gradient(dq, weights, parts.q, dx, !is_first);
        ops.linear_input_gradient(dk, weights, parts.k, dx, true);
        ops.linear_input_gradient(dv, weights, parts.v, dx, true);
      });
  ops.zero_gaps(layout.gaps, dweights);
}

/// The common part of the two: the bias behind the sum and the norm before it.
void NetworkBlockTiles::finish(NetworkOps& ops, const void* norm_weight, const void* in,
                               const float* sum, void* gradient, void* dbias,
                               void* dnorm_weight) const {
  const WorkspaceStack::Scope scope(ops.memory());
  const Matrix x = ops.take_matrix(shape_.tokens(), config_.hidden_size);
  float* const inv_rms = ops.take_floats(shape_.tokens());
  ops.rms_norm(hidden(in), norm_weight, config_.rms_norm_eps, x, inv_rms);
  const Matrix& dx = x;
  ops.post([&](Kernels& kernels, Stream& stream) {
    if (dbias != nullptr) {
      kernels.bias_gradient(stream, hidden(gradient), dbias);
    }
    kernels.cast(stream, sum, DType::f32, dx.data, dtype_, Elements(dx.rows) * dx.columns);
  });
  ops.rms_norm_backward(dx, hidden(in), norm_weight, inv_rms, hidden(gradient), true, dnorm_weight);
}

void NetworkBlockTiles::mlp_finish(NetworkOps& ops, const void* norms, const void* in,
                                   const float* sum, void* gradient, void* packed_dnorms) const {
  const PackedVector dnorms(packed_dnorms, dtype_);
  finish(ops, PackedVector(norms, dtype_).at(mlp_norms_.norm), in, sum, gradient,
         mlp_norms_.down_bias ? dnorms.at(*mlp_norms_.down_bias) : nullptr,
         dnorms.at(mlp_norms_.norm));
  ops.zero_gaps(mlp_norms_.gaps, dnorms);
}

void NetworkBlockTiles::attention_finish(NetworkOps& ops, const void* norms, const void* in,
                                         const float* sum, void* gradient,
                                         void* packed_dnorms) const {
  const PackedVector dnorms(packed_dnorms, dtype_);
  finish(ops, PackedVector(norms, dtype_).at(attention_norms_.input_norm), in, sum, gradient,
         attention_norms_.o_bias ? dnorms.at(*attention_norms_.o_bias) : nullptr,
         dnorms.at(attention_norms_.input_norm));
  if (config_.qk_norm) {
    ops.post([&](Kernels& kernels, Stream& stream) {
      const float* const sums = sum + norm_sums();
      const Elements count(config_.head_dim);
      kernels.cast(stream, sums, DType::f32, dnorms.at(attention_norms_.q_norm), dtype_, count);
      kernels.cast(stream, sums + config_.head_dim, DType::f32, dnorms.at(attention_norms_.k_norm),
                   dtype_, count);
    });
  }
  ops.zero_gaps(attention_norms_.gaps, dnorms);
}

}  // namespace headrace::model
