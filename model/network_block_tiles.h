#pragma once

#include <cstdint>

#include "device/kernels.h"
#include "model/model_config.h"
#include "model/network.h"
#include "model/network_attention.h"
#include "model/network_layout.h"
#include "model/network_ops.h"

namespace headrace::model {

/// A decoder block that comes in tiles (BlockCut). Each half is a sum over its tiles, kept in fp32
/// from one to the next; so is the gradient of its normed input.
///
/// A tile is worked on in pieces of a fixed size, which alone decide how numbers are added: the
/// bits do not depend on how the block is cut. They differ in rounding from those of NetworkBlock,
/// whose products are whole. Immutable.
class NetworkBlockTiles {
 public:
  using Tile = Network::BlockTile;

  /// `piece_size`: columns of the inner matrices (query heads, rows of the MLP) computed at a time;
  /// whole key-value heads with the query heads that read them, at least one.
  NetworkBlockTiles(const ModelConfig& config, BatchShape shape, DType dtype, int64_t piece_size);

  /// What tiles are multiples of, but for the last.
  BlockCut pieces() const { return pieces_; }
  /// Of `sum`: [tokens, hidden] fp32, then the gradients of q_norm and k_norm.
  Bytes sum_bytes() const;

  /// The tiles come in order: the first begins the sum, the last sets out to in + sum. out:
  /// [tokens, hidden]; may be `in`.
  void attention_forward(NetworkOps& ops, const Positions& positions, const Tile& tile,
                         const void* in, float* sum, void* out) const;
  void mlp_forward(NetworkOps& ops, const Tile& tile, const void* in, float* sum, void* out) const;

  /// The tiles come in reverse order: the last begins the sum of the normed input's gradient. dout
  /// is the gradient of what forward has put out. dweights of the tile are overwritten.
  void mlp_backward(NetworkOps& ops, const Tile& tile, const void* in, const void* dout, float* sum,
                    void* dweights) const;
  void attention_backward(NetworkOps& ops, const Positions& positions, const Tile& tile,
                          const void* in, const void* dout, float* sum, void* dweights) const;
  /// Behind the last tile: takes the sum through the norm and adds it to `gradient`, which holds
  /// dout. dnorms of the half are overwritten.
  void mlp_finish(NetworkOps& ops, const void* norms, const void* in, const float* sum,
                  void* gradient, void* dnorms) const;
  void attention_finish(NetworkOps& ops, const void* norms, const void* in, const float* sum,
                        void* gradient, void* dnorms) const;

 private:
  /// Of one piece.
  struct Mlp {
    device::Matrix gate, up, activated;
  };

  device::Matrix hidden(const void* data) const;
  device::Matrix sum_of(const float* sum) const;
  int64_t norm_sums() const;
  device::Matrix normed(NetworkOps& ops, const void* in, const void* weight) const;
  Mlp mlp_piece(NetworkOps& ops, const PackedVector& weights, const MlpTileLayout& layout,
                const TileRange& piece, const LinearInput& x) const;
  NetworkAttention::Weights attention_weights(const PackedVector& norms,
                                              const PackedVector& weights,
                                              const AttentionTileLayout& layout,
                                              const TileRange& piece) const;
  const NetworkAttention& heads(int64_t kv_heads) const;
  void add_sum(NetworkOps& ops, const float* sum, const void* bias, const device::Matrix& residual,
               const device::Matrix& out) const;
  void finish(NetworkOps& ops, const void* norm_weight, const void* in, const float* sum,
              void* gradient, void* dbias, void* dnorm_weight) const;

  ModelConfig config_;
  BatchShape shape_;
  DType dtype_;
  BlockCut pieces_;
  AttentionNormsLayout attention_norms_;
  MlpNormsLayout mlp_norms_;
  NetworkAttention full_piece_;
  NetworkAttention last_piece_;  ///< of the heads that are left over
};

}  // namespace headrace::model
