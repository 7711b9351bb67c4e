#include "device/cpu/attention_tiling.h"

#include <algorithm>

#include "base/check.h"
#include "device/cpu/parallel_tasks.h"
#include "device/cpu/tile_convert.h"

namespace headrace::device::cpu {

namespace {

constexpr int64_t kUnit = 16;
// Rows of a tile and keys per tile: large enough for the matrix products, small enough for the
// second-level cache (the backward pass works on some six such tiles).
constexpr int64_t kRowsWanted = 256;
constexpr int64_t kQueryBlockMax = 128;
constexpr int64_t kKeyBlockMax = 128;
constexpr int64_t kBackwardTasksWanted = 16;
// The parts of the backward pass that are held at once take no more than this, as long as each pair
// has one: long sequences have work enough for few.
constexpr int64_t kBackwardSumBytes = int64_t{16} << 20;

/// Offset, in elements, of a position of a key/value head.
int64_t key_offset(const AttentionTiling& tiling, int64_t pair, int64_t k_index, int64_t stride) {
  const int64_t batch_index = pair / tiling.shape.kv_heads;
  const int64_t head = pair % tiling.shape.kv_heads;
  return (batch_index * tiling.shape.seq + k_index * tiling.k_block) * stride +
         head * tiling.shape.head_dim;
}

StridedRows key_layout(const AttentionTiling& tiling, int64_t k_index, DType dtype,
                       int64_t stride) {
  const int64_t keys = std::min(tiling.k_block, tiling.shape.seq - k_index * tiling.k_block);
  return {dtype, keys, tiling.shape.head_dim, stride};
}

}  // namespace

AttentionTiling::AttentionTiling(const AttentionShape& shape_in)
    : shape(shape_in),
      group(shape.q_heads / shape.kv_heads),
      pairs(shape.batch * shape.kv_heads),
      dim(align_up(shape.head_dim, kUnit)) {
  const int64_t seq_padded = align_up(std::max<int64_t>(shape.seq, 1), kUnit);
  const int64_t wanted = std::clamp(kRowsWanted / group / kUnit * kUnit, kUnit, kQueryBlockMax);
  q_block = std::min(wanted, seq_padded);
  k_block = std::min(kKeyBlockMax, seq_padded);
  q_blocks = ceil_div(shape.seq, q_block);
  k_blocks = ceil_div(shape.seq, k_block);
  rows = group * q_block;
  if (is_empty()) {
    return;
  }
  const int64_t sum_bytes = k_blocks * k_block * dim * 2 * static_cast<int64_t>(sizeof(float));
  const int64_t affordable = kBackwardSumBytes / (sum_bytes * pairs);
  segments = std::clamp<int64_t>(std::min(kBackwardTasksWanted / pairs, affordable), 1, q_blocks);
  slots = std::min(core_count(), pairs * q_blocks);
  window = segments > 1 ? pairs : std::min(pairs, core_count());
}

AttentionProducts::AttentionProducts(TileProductCache& cache, const AttentionTiling& tiling) {
  TileShape shape;
  shape.rows = tiling.rows;
  shape.columns = tiling.k_block;
  shape.depth = tiling.dim;
  shape.transpose_b = true;
  scores = cache.get(shape);

  shape.columns = tiling.dim;
  shape.depth = tiling.k_block;
  shape.transpose_b = false;
  weighted = cache.get(shape);
  shape.accumulate = true;
  add_weighted = cache.get(shape);

  shape.rows = tiling.k_block;
  shape.depth = tiling.rows;
  shape.transpose_a = true;
  add_key_sums = cache.get(shape);
  scratchpad_size = std::max({scores->scratchpad_size(), weighted->scratchpad_size(),
                              add_weighted->scratchpad_size(), add_key_sums->scratchpad_size()});
}

QueryBlock::QueryBlock(const AttentionTiling& tiling, int64_t pair, int64_t q_index)
    : tiling_(tiling),
      batch_index_(pair / tiling.shape.kv_heads),
      first_head_(pair % tiling.shape.kv_heads * tiling.group),
      first_position_(q_index * tiling.q_block),
      positions_(std::min(tiling.q_block, tiling.shape.seq - first_position_)),
      begins_(tiling.shape.visible.begins == nullptr
                  ? nullptr
                  : tiling.shape.visible.begins + batch_index_ * tiling.shape.seq +
                        first_position_) {}

int64_t QueryBlock::element_offset(int64_t head_in_group, int64_t stride) const {
  return (batch_index_ * tiling_.shape.seq + first_position_) * stride +
         (first_head_ + head_in_group) * tiling_.shape.head_dim;
}

int64_t QueryBlock::statistics_offset(int64_t head_in_group) const {
  const int64_t head = batch_index_ * tiling_.shape.q_heads + first_head_ + head_in_group;
  return head * tiling_.shape.seq + first_position_;
}

void QueryBlock::load(const void* source, DType dtype, int64_t stride, float scale,
                      float* tile) const {
  const StridedRows layout{dtype, positions_, tiling_.shape.head_dim, stride};
  for (int64_t h = 0; h < tiling_.group; ++h) {
    const int64_t offset = element_offset(h, stride) * size_of(dtype).count();
    load_tile(static_cast<const std::byte*>(source) + offset, layout, scale,
              tile + h * tiling_.q_block * tiling_.dim, tiling_.q_block, tiling_.dim);
  }
}

void QueryBlock::store(const float* tile, float scale, void* target, DType dtype,
                       int64_t stride) const {
  const StridedRows layout{dtype, positions_, tiling_.shape.head_dim, stride};
  for (int64_t h = 0; h < tiling_.group; ++h) {
    const int64_t offset = element_offset(h, stride) * size_of(dtype).count();
    store_tile(tile + h * tiling_.q_block * tiling_.dim, tiling_.dim, scale, false,
               static_cast<std::byte*>(target) + offset, layout);
  }
}

void QueryBlock::load_statistics(const float* source, float* rows) const {
  std::fill_n(rows, tiling_.rows, 0.0F);
  for (int64_t h = 0; h < tiling_.group; ++h) {
    std::copy_n(source + statistics_offset(h), positions_, rows + h * tiling_.q_block);
  }
}

void QueryBlock::store_statistics(const float* rows, float* target) const {
  for (int64_t h = 0; h < tiling_.group; ++h) {
    std::copy_n(rows + h * tiling_.q_block, positions_, target + statistics_offset(h));
  }
}

/// That the block's `position`-th query sees.
int64_t QueryBlock::first_key_of(int64_t position) const {
  return begins_ == nullptr ? 0 : begins_[position];
}

// Later queries see none before it.
int64_t QueryBlock::first_key_block() const {
  return first_key_of(0) / tiling_.k_block;
}

int64_t QueryBlock::end_key_block() const {
  return ceil_div(first_position_ + positions_, tiling_.k_block);
}

void QueryBlock::set_seen(int64_t k_index, ColumnRange* seen) const {
  const int64_t first_key = k_index * tiling_.k_block;
  const auto column = [&](int64_t position) {
    return static_cast<int16_t>(std::clamp<int64_t>(position - first_key, 0, tiling_.k_block));
  };
  for (int64_t i = 0; i < tiling_.q_block; ++i) {
    ColumnRange range;
    if (i < positions_) {
      range = {column(first_key_of(i)), column(first_position_ + i + 1)};
    }
    if (range.begin >= range.end) {
      range = {};
    }
    for (int64_t h = 0; h < tiling_.group; ++h) {
      seen[h * tiling_.q_block + i] = range;
    }
  }
}

void load_key_block(const AttentionTiling& tiling, int64_t pair, int64_t k_index,
                    const void* source, DType dtype, int64_t stride, float* tile) {
  const int64_t offset = key_offset(tiling, pair, k_index, stride) * size_of(dtype).count();
  load_tile(static_cast<const std::byte*>(source) + offset,
            key_layout(tiling, k_index, dtype, stride), 1.0F, tile, tiling.k_block, tiling.dim);
}

void store_key_block(const AttentionTiling& tiling, int64_t pair, int64_t k_index,
                     const float* tile, void* target, DType dtype, int64_t stride) {
  const int64_t offset = key_offset(tiling, pair, k_index, stride) * size_of(dtype).count();
  store_tile(tile, tiling.dim, 1.0F, false, static_cast<std::byte*>(target) + offset,
             key_layout(tiling, k_index, dtype, stride));
}

}  // namespace headrace::device::cpu
