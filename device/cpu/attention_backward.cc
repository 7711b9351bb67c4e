#include <algorithm>

#include "device/cpu/attention.h"
#include "device/cpu/attention_tiling.h"
#include "device/cpu/parallel_tasks.h"
#include "device/cpu/scratch.h"

namespace headrace::device::cpu {

namespace {

/// Tiles of one thread.
struct BackwardTiles {
  BackwardTiles(const AttentionTiling& tiling, const AttentionProducts& products,
                ScratchCarver carver)
      : q(carver.take<float>(tiling.rows * tiling.dim)),
        dout(carver.take<float>(tiling.rows * tiling.dim)),
        dq(carver.take<float>(tiling.rows * tiling.dim)),
        k(carver.take<float>(tiling.k_block * tiling.dim)),
        v(carver.take<float>(tiling.k_block * tiling.dim)),
        scores(carver.take<float>(tiling.rows * tiling.k_block)),
        dscores(carver.take<float>(tiling.rows * tiling.k_block)),
        log_sum_exp(carver.take<float>(tiling.rows)),
        delta(carver.take<float>(tiling.rows)),
        seen(carver.take<ColumnRange>(tiling.rows)),
        scratchpad(carver.take<std::byte>(products.scratchpad_size.count())) {}

  float* q;
  float* dout;
  float* dq;
  float* k;
  float* v;
  float* scores;
  float* dscores;
  float* log_sum_exp;
  float* delta;
  ColumnRange* seen;
  std::byte* scratchpad;
};

Bytes slot_bytes(const AttentionTiling& tiling, const AttentionProducts& products) {
  return scratch_bytes<float>(tiling.rows * tiling.dim) * 3 +
         scratch_bytes<float>(tiling.k_block * tiling.dim) * 2 +
         scratch_bytes<float>(tiling.rows * tiling.k_block) * 2 +
         scratch_bytes<float>(tiling.rows) * 2 + scratch_bytes<ColumnRange>(tiling.rows) +
         scratch_bytes<std::byte>(products.scratchpad_size.count());
}

/// Elements of the fp32 sum of dk, or of dv, over a part of one pair.
int64_t sum_elements(const AttentionTiling& tiling) {
  return tiling.k_blocks * tiling.k_block * tiling.dim;
}

struct BackwardArguments {
  DType dtype;
  const void* q;
  const void* k;
  const void* v;
  const void* out;
  const void* dout;
  const float* log_sum_exp;
  void* dq;
  void* dk;
  void* dv;
};

/// Loads a query block, computes dq of it and adds its share to dk_sum and dv_sum [seq, dim].
void backward_block(const AttentionTiling& tiling, const AttentionProducts& products,
                    const BackwardArguments& arguments, int64_t pair, int64_t q_index,
                    const BackwardTiles& tiles, float* dk_sum, float* dv_sum) {
  const AttentionShape& shape = tiling.shape;
  const DType dtype = arguments.dtype;
  const QueryBlock block(tiling, pair, q_index);
  block.load(arguments.q, dtype, shape.q_stride, shape.scale, tiles.q);
  block.load(arguments.dout, dtype, shape.out_stride, 1.0F, tiles.dout);
  block.load(arguments.out, dtype, shape.out_stride, 1.0F, tiles.dq);  // until dq starts
  block.load_statistics(arguments.log_sum_exp, tiles.log_sum_exp);
  row_dots(tiles.dq, tiles.dout, tiling.rows, tiling.dim, tiles.delta);
  const int64_t first_key_block = block.first_key_block();
  for (int64_t k_index = first_key_block; k_index < block.end_key_block(); ++k_index) {
    load_key_block(tiling, pair, k_index, arguments.k, dtype, shape.k_stride, tiles.k);
    load_key_block(tiling, pair, k_index, arguments.v, dtype, shape.v_stride, tiles.v);
    products.scores->run(tiles.q, tiles.k, tiles.scores, tiles.scratchpad);
    products.scores->run(tiles.dout, tiles.v, tiles.dscores, tiles.scratchpad);
    block.set_seen(k_index, tiles.seen);
    softmax_gradient({tiling.rows, tiling.k_block, tiles.seen}, tiles.log_sum_exp, tiles.delta,
                     tiles.scores, tiles.dscores);
    const int64_t offset = k_index * tiling.k_block * tiling.dim;
    products.add_key_sums->run(tiles.scores, tiles.dout, dv_sum + offset, tiles.scratchpad);
    // q carries the scale already; dq gets it when stored.
    products.add_key_sums->run(tiles.dscores, tiles.q, dk_sum + offset, tiles.scratchpad);
    const TileProduct& dq =
        k_index == first_key_block ? *products.weighted : *products.add_weighted;
    dq.run(tiles.dscores, tiles.k, tiles.dq, tiles.scratchpad);
  }
  block.store(tiles.dq, shape.scale, arguments.dq, dtype, shape.q_stride);
}

/// Adds up the parts of a pair for one key block, in order, and stores dk and dv.
void store_key_gradients(const AttentionTiling& tiling, const BackwardArguments& arguments,
                         int64_t pair, int64_t k_index, float* pair_sums) {
  const int64_t elements = sum_elements(tiling);
  const int64_t tile = tiling.k_block * tiling.dim;
  float* const dk = pair_sums + k_index * tile;
  float* const dv = dk + elements;
  for (int64_t segment = 1; segment < tiling.segments; ++segment) {
    const float* const dk_part = dk + segment * 2 * elements;
    const float* const dv_part = dk_part + elements;
    for (int64_t i = 0; i < tile; ++i) {
      dk[i] += dk_part[i];
      dv[i] += dv_part[i];
    }
  }
  store_key_block(tiling, pair, k_index, dk, arguments.dk, arguments.dtype, tiling.shape.k_stride);
  store_key_block(tiling, pair, k_index, dv, arguments.dv, arguments.dtype, tiling.shape.v_stride);
}

}  // namespace

Bytes attention_backward_scratch(const AttentionTiling& tiling, const AttentionProducts& products) {
  const Bytes sums = scratch_bytes<float>(sum_elements(tiling) * 2) * tiling.segments;
  return slot_bytes(tiling, products) * tiling.slots + sums * tiling.window;
}

void CpuAttention::backward(const AttentionShape& shape, DType dtype, const void* q, const void* k,
                            const void* v, const void* out, const void* dout,
                            const float* log_sum_exp, void* dq, void* dk, void* dv,
                            Workspace scratch) const {
  const AttentionTiling tiling(shape);
  if (tiling.is_empty()) {
    return;
  }
  const AttentionProducts products(products_, tiling);
  check_scratch(scratch, attention_backward_scratch(tiling, products));
  const Bytes per_slot = slot_bytes(tiling, products);
  auto* const sums = reinterpret_cast<float*>(scratch.data + (per_slot * tiling.slots).count());
  const int64_t part_elements = sum_elements(tiling) * 2;
  const BackwardArguments arguments{dtype, q, k, v, out, dout, log_sum_exp, dq, dk, dv};

  for (int64_t first = 0; first < tiling.pairs; first += tiling.window) {
    const int64_t pairs = std::min(tiling.window, tiling.pairs - first);
    parallel_tasks(pairs * tiling.segments, tiling.slots, [&](int64_t task, int64_t slot) {
      const BackwardTiles tiles(tiling, products,
                                ScratchCarver({scratch.data + slot * per_slot.count(), per_slot}));
      float* const dk_sum = sums + task * part_elements;
      float* const dv_sum = dk_sum + sum_elements(tiling);
      std::fill_n(dk_sum, part_elements, 0.0F);
      for (int64_t q_index = task % tiling.segments; q_index < tiling.q_blocks;
           q_index += tiling.segments) {
        backward_block(tiling, products, arguments, first + task / tiling.segments, q_index, tiles,
                       dk_sum, dv_sum);
      }
    });
    parallel_tasks(pairs * tiling.k_blocks, tiling.slots, [&](int64_t task, int64_t) {
      const int64_t pair = task / tiling.k_blocks;
      store_key_gradients(tiling, arguments, first + pair, task % tiling.k_blocks,
                          sums + pair * tiling.segments * part_elements);
    });
  }
}

}  // namespace headrace::device::cpu
