#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/cpu/attention_tiles.h"
#include "device/cpu/tile_product.h"
#include "device/kernels.h"

namespace headrace::device::cpu {

/// How attention of one shape is cut. A *pair* is one (sequence, key/value head). Depends on the
/// shape only, except `slots` and `window` (how much runs at once), which no result depends on.
struct AttentionTiling {
  explicit AttentionTiling(const AttentionShape& shape_in);

  AttentionShape shape;
  int64_t group = 0;     ///< query heads per key/value head
  int64_t pairs = 0;     ///< batch * kv_heads
  int64_t dim = 0;       ///< head_dim padded to 16
  int64_t q_block = 0;   ///< queries (positions) per tile
  int64_t k_block = 0;   ///< keys per tile
  int64_t q_blocks = 0;  ///< blocks per sequence
  int64_t k_blocks = 0;
  int64_t rows = 0;  ///< of a tile: group * q_block, head by head
  /// The backward pass of a pair is summed in this many parts, so that few pairs keep many cores
  /// busy: part s takes the query blocks s, s + segments, ...
  int64_t segments = 0;
  int64_t slots = 0;   ///< scratch areas, one per thread
  int64_t window = 0;  ///< pairs whose backward parts are held at once

  bool is_empty() const { return pairs == 0 || shape.seq == 0; }
};

/// The matrix products of the tiles.
struct AttentionProducts {
  AttentionProducts(TileProductCache& cache, const AttentionTiling& tiling);

  std::shared_ptr<const TileProduct> scores;        ///< [rows, dim] * [k_block, dim]^T
  std::shared_ptr<const TileProduct> weighted;      ///< [rows, k_block] * [k_block, dim]
  std::shared_ptr<const TileProduct> add_weighted;  ///< the same, added
  std::shared_ptr<const TileProduct> add_key_sums;  ///< [rows, k_block]^T * [rows, dim], added
  Bytes scratchpad_size;                            ///< of the largest
};

Bytes attention_forward_scratch(const AttentionTiling& tiling, const AttentionProducts& products);
Bytes attention_backward_scratch(const AttentionTiling& tiling, const AttentionProducts& products);

/// The block of queries `q_index` of a pair; also addresses what is laid out as queries are.
class QueryBlock {
 public:
  QueryBlock(const AttentionTiling& tiling, int64_t pair, int64_t q_index);

  /// tile[rows, dim] = the block's rows of q, out or dout (row stride `stride`) times `scale`.
  void load(const void* source, DType dtype, int64_t stride, float scale, float* tile) const;
  void store(const float* tile, float scale, void* target, DType dtype, int64_t stride) const;
  /// Statistics [batch, q_heads, seq] from and to [rows]; rows beyond the sequence load as 0.
  void load_statistics(const float* source, float* rows) const;
  void store_statistics(const float* rows, float* target) const;
  /// The blocks of keys that some query of the block sees.
  int64_t first_key_block() const;
  int64_t end_key_block() const;
  /// seen[r] = the keys of block `k_index` that row r sees.
  void set_seen(int64_t k_index, ColumnRange* seen) const;

 private:
  int64_t first_key_of(int64_t position) const;
  int64_t element_offset(int64_t head_in_group, int64_t stride) const;
  int64_t statistics_offset(int64_t head_in_group) const;

  const AttentionTiling& tiling_;
  int64_t batch_index_;
  int64_t first_head_;
  int64_t first_position_;
  int64_t positions_;      ///< in this block, within the sequence
  const int32_t* begins_;  ///< of what they see; null: all of the sequence before
};

/// tile[k_block, dim] = rows of k or v of block `k_index` of a pair; zero beyond the sequence.
void load_key_block(const AttentionTiling& tiling, int64_t pair, int64_t k_index,
                    const void* source, DType dtype, int64_t stride, float* tile);
void store_key_block(const AttentionTiling& tiling, int64_t pair, int64_t k_index,
                     const float* tile, void* target, DType dtype, int64_t stride);

}  // namespace headrace::device::cpu
