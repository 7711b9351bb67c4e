#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/attention.h"
#include "device/cpu/attention_tiling.h"
#include "device/cpu/parallel_tasks.h"
#include "device/cpu/scratch.h"

namespace headrace::device::cpu {

namespace {

/// Tiles of one thread.
struct ForwardTiles {
  ForwardTiles(const AttentionTiling& tiling, const AttentionProducts& products,
               ScratchCarver carver)
      : q(carver.take<float>(tiling.rows * tiling.dim)),
        out(carver.take<float>(tiling.rows * tiling.dim)),
        k(carver.take<float>(tiling.k_block * tiling.dim)),
        v(carver.take<float>(tiling.k_block * tiling.dim)),
        scores(carver.take<float>(tiling.rows * tiling.k_block)),
        row_max(carver.take<float>(tiling.rows)),
        row_sum(carver.take<float>(tiling.rows)),
        seen(carver.take<ColumnRange>(tiling.rows)),
        scratchpad(carver.take<std::byte>(products.scratchpad_size.count())) {}

  float* q;
  float* out;
  float* k;
  float* v;
  float* scores;
  float* row_max;
  float* row_sum;
  ColumnRange* seen;
  std::byte* scratchpad;
};

Bytes slot_bytes(const AttentionTiling& tiling, const AttentionProducts& products) {
  return scratch_bytes<float>(tiling.rows * tiling.dim) * 2 +
         scratch_bytes<float>(tiling.k_block * tiling.dim) * 2 +
         scratch_bytes<float>(tiling.rows * tiling.k_block) +
         scratch_bytes<float>(tiling.rows) * 2 + scratch_bytes<ColumnRange>(tiling.rows) +
         scratch_bytes<std::byte>(products.scratchpad_size.count());
}

struct ForwardArguments {
  DType dtype;
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* log_sum_exp;
};

/// Divides each row by its sum and turns the maximum into the log-sum-exp.
void finish_rows(const AttentionTiling& tiling, const ForwardTiles& tiles) {
  for (int64_t r = 0; r < tiling.rows; ++r) {
    // Rows beyond the sequence have no sum; they are not stored.
    const float inverse = 1.0F / tiles.row_sum[r];
    float* const row = tiles.out + r * tiling.dim;
    for (int64_t c = 0; c < tiling.dim; ++c) {
      row[c] *= inverse;
    }
    tiles.row_max[r] += std::log(tiles.row_sum[r]);
  }
}

void forward_block(const AttentionTiling& tiling, const AttentionProducts& products,
                   const ForwardArguments& arguments, int64_t pair, int64_t q_index,
                   const ForwardTiles& tiles) {
  const AttentionShape& shape = tiling.shape;
  const QueryBlock block(tiling, pair, q_index);
  block.load(arguments.q, arguments.dtype, shape.q_stride, shape.scale, tiles.q);
  std::fill_n(tiles.row_max, tiling.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(tiles.row_sum, tiling.rows, 0.0F);
  std::fill_n(tiles.out, tiling.rows * tiling.dim, 0.0F);
  for (int64_t k_index = block.first_key_block(); k_index < block.end_key_block(); ++k_index) {
    load_key_block(tiling, pair, k_index, arguments.k, arguments.dtype, shape.k_stride, tiles.k);
    load_key_block(tiling, pair, k_index, arguments.v, arguments.dtype, shape.v_stride, tiles.v);
    products.scores->run(tiles.q, tiles.k, tiles.scores, tiles.scratchpad);
    block.set_seen(k_index, tiles.seen);
    softmax_step({tiling.rows, tiling.k_block, tiles.seen}, tiles.scores, tiles.row_max,
                 tiles.row_sum, tiles.out, tiling.dim);
    products.add_weighted->run(tiles.scores, tiles.v, tiles.out, tiles.scratchpad);
  }
  finish_rows(tiling, tiles);
  block.store(tiles.out, 1.0F, arguments.out, arguments.dtype, shape.out_stride);
  block.store_statistics(tiles.row_max, arguments.log_sum_exp);
}

}  // namespace

Bytes attention_forward_scratch(const AttentionTiling& tiling, const AttentionProducts& products) {
  return slot_bytes(tiling, products) * tiling.slots;
}

void CpuAttention::forward(const AttentionShape& shape, DType dtype, const void* q, const void* k,
                           const void* v, void* out, float* log_sum_exp, Workspace scratch) const {
  const AttentionTiling tiling(shape);
  if (tiling.is_empty()) {
    return;
  }
  const AttentionProducts products(products_, tiling);
  check_scratch(scratch, attention_forward_scratch(tiling, products));
  const Bytes per_slot = slot_bytes(tiling, products);
  const ForwardArguments arguments{dtype, q, k, v, out, log_sum_exp};
  parallel_tasks(tiling.pairs * tiling.q_blocks, tiling.slots, [&](int64_t task, int64_t slot) {
    // The last query blocks see most keys: start with them, so that threads end together.
    const int64_t q_index = tiling.q_blocks - 1 - task / tiling.pairs;
    const ForwardTiles tiles(tiling, products,
                             ScratchCarver({scratch.data + slot * per_slot.count(), per_slot}));
    forward_block(tiling, products, arguments, task % tiling.pairs, q_index, tiles);
  });
}

Bytes CpuAttention::scratch(const AttentionShape& shape) const {
  const AttentionTiling tiling(shape);
  if (tiling.is_empty()) {
    return Bytes(0);
  }
  const AttentionProducts products(products_, tiling);
  return std::max(attention_forward_scratch(tiling, products),
                  attention_backward_scratch(tiling, products));
}

}  // namespace headrace::device::cpu
