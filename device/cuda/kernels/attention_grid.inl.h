#pragma once

#include "device/cuda/kernels/tile.inl.h"
#include "device/kernels/math.inl.h"

/// Causal grouped-query attention after FlashAttention (Dao et al., 2022; Dao, 2023): tiles of
/// queries by tiles of keys in shared memory, everything in fp32. No sum depends on which block
/// runs first: the backward pass goes over the scores twice, once by keys and once by queries,
/// where others add to dq with atomics.
namespace headrace::device::cuda {

/// Shared memory of a block: tiles of `tile` rows of the head, tiles of scores, and numbers per
/// row. One rule for host and kernels.
struct AttentionTiles {
  int tile;    ///< rows
  int dim;     ///< head_dim, padded to a multiple of 4
  int length;  ///< of a row of a head tile
  int score_length;

  HR_KERNEL AttentionTiles(int64_t tile_rows, int64_t head_dim)
      : tile(static_cast<int>(tile_rows)),
        dim(static_cast<int>((head_dim + 3) / 4 * 4)),
        length(dim + 1),
        score_length(tile + 1) {}

  HR_KERNEL float* head(float* base, int index) const { return base + index * tile * length; }
  HR_KERNEL float* scores(float* base, int heads, int index) const {
    return head(base, heads) + index * tile * score_length;
  }
  HR_KERNEL float* rows(float* base, int heads, int scores_count, int index) const {
    return scores(base, heads, scores_count) + index * tile;
  }
  HR_KERNEL int64_t floats(int heads, int scores_count, int row_count) const {
    return int64_t{heads} * tile * length + int64_t{scores_count} * tile * score_length +
           int64_t{row_count} * tile;
  }
};

/// scores[i][j] = q_i k_j.
template <class Block>
HR_KERNEL void multiply_scores(const Block& block, const AttentionTiles& tiles, const float* q,
                               const float* k, float* scores) {
  const int score_length = tiles.score_length;
  const auto store = [=](int r, int c, float sum)
                         HR_KERNEL_LAMBDA { scores[r * score_length + c] = sum; };
  // Small tiles have too few elements for four times four per thread.
  if (tiles.tile >= 64) {
    multiply_tiles<4>(block, tiles.tile, tiles.tile, tiles.dim, {q, tiles.length, 1},
                      {k, 1, tiles.length}, store);
  } else {
    multiply_tiles<2>(block, tiles.tile, tiles.tile, tiles.dim, {q, tiles.length, 1},
                      {k, 1, tiles.length}, store);
  }
}

/// sum[i] += scores_i head, or scores^T_i head.
template <bool kTranspose, class Block>
HR_KERNEL void add_weighted(const Block& block, const AttentionTiles& tiles, const float* scores,
                            const float* head, float* sum) {
  const int length = tiles.length;
  const TileView weights = kTranspose ? TileView{scores, 1, tiles.score_length}
                                      : TileView{scores, tiles.score_length, 1};
  multiply_tiles<4>(block, tiles.tile, tiles.dim, tiles.tile, weights, {head, length, 1},
                    [=](int r, int c, float value)
                        HR_KERNEL_LAMBDA { sum[r * length + c] += value; });
}

/// Which tile of which head a block has: the same tile of all heads, then the next tile.
struct AttentionPlace {
  int64_t tile;
  int64_t sequence;
  int64_t head;  ///< of `heads`

  template <class Block>
  HR_KERNEL AttentionPlace(const Block& block, const AttentionArguments& a, int64_t heads)
      : tile(block.index_x() / (a.batch * heads)),
        sequence(block.index_x() % (a.batch * heads) / heads),
        head(block.index_x() % heads) {}
};

/// Where the parts of one (sequence, head) begin.
template <class T>
struct AttentionHead {
  HR_KERNEL AttentionHead(const AttentionArguments& a, int64_t sequence, int64_t q_head)
      : first_row(sequence * a.seq),
        q_column(q_head * a.head_dim),
        kv_column(q_head / (a.q_heads / a.kv_heads) * a.head_dim),
        statistics((sequence * a.q_heads + q_head) * a.seq) {}

  int64_t first_row;
  int64_t q_column;
  int64_t kv_column;
  int64_t statistics;

  /// The first key that a query sees; later queries see none before it.
  HR_KERNEL int64_t first_key(const AttentionArguments& a, int64_t query) const {
    return a.begins == nullptr ? 0 : a.begins[first_row + query];
  }
  /// The query behind the last one that sees a key; no later one sees a key before it.
  HR_KERNEL int64_t end_of_queries(const AttentionArguments& a, int64_t key) const {
    return a.ends == nullptr ? a.seq : a.ends[first_row + key];
  }

  HR_KERNEL const T* q_rows(const void* base, int64_t stride, int64_t position) const {
    return static_cast<const T*>(base) + (first_row + position) * stride + q_column;
  }
  HR_KERNEL const T* kv_rows(const void* base, int64_t stride, int64_t position) const {
    return static_cast<const T*>(base) + (first_row + position) * stride + kv_column;
  }
};

HR_KERNEL int rows_there(const AttentionArguments& a, int64_t first) {
  const int64_t left = a.seq - first;
  return static_cast<int>(left < a.tile ? left : a.tile);
}

/// Which keys of a tile the queries of another see: query r those from begin(r) to end(r), without.
struct SeenKeys {
  template <class T>
  HR_KERNEL SeenKeys(const AttentionArguments& a, const AttentionHead<T>& head, int64_t first_query,
                     int64_t first_key)
      : begins(a.begins == nullptr ? nullptr : a.begins + head.first_row + first_query),
        first(first_key),
        offset(first_query - first_key),
        queries(rows_there(a, first_query)),
        keys(rows_there(a, first_key)) {}

  const int32_t* begins;  ///< of what the queries see; null: every query sees the first key
  int64_t first;          ///< key
  int64_t offset;         ///< of the first query from the first key
  int queries;            ///< that are there
  int keys;

  HR_KERNEL int begin(int r) const {
    const int64_t begin = begins == nullptr || r >= queries ? 0 : begins[r] - first;
    return static_cast<int>(begin > 0 ? begin : 0);
  }
  HR_KERNEL int end(int r) const {
    return static_cast<int>(offset + r + 1 < keys ? offset + r + 1 : keys);
  }
};

template <class T>
struct AttentionForward {
  using Arguments = AttentionArguments;
  static constexpr int kHeads = 3;
  static constexpr int kScores = 1;
  static constexpr int kRows = 3;

  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& a) {
    const AttentionTiles tiles(a.tile, a.head_dim);
    const AttentionPlace place(block, a, a.q_heads);
    const AttentionHead<T> head(a, place.sequence, place.head);
    // The last queries see most keys: they start first.
    const int64_t q_tile = ceil_div(a.seq, a.tile) - 1 - place.tile;
    const int64_t first = q_tile * a.tile;
    const int there = rows_there(a, first);
    const int dim_there = static_cast<int>(a.head_dim);
    auto* const base = block.template shared<float>();
    float* const q = tiles.head(base, 0);
    float* const kv = tiles.head(base, 1);
    float* const out = tiles.head(base, 2);
    float* const scores = tiles.scores(base, kHeads, 0);
    const Rows rows{tiles.rows(base, kHeads, kScores, 0), tiles.rows(base, kHeads, kScores, 1),
                    tiles.rows(base, kHeads, kScores, 2)};

    load_tile(block, head.q_rows(a.q, a.q_stride, first), a.q_stride, there, dim_there, a.scale, q,
              tiles.tile, tiles.dim, tiles.length);
    fill_tile(block, out, tiles.tile * tiles.length, 0.0F);
    fill_tile(block, rows.max, tiles.tile, -__builtin_huge_valf());
    fill_tile(block, rows.sum, tiles.tile, 0.0F);
    for (int64_t k_first = head.first_key(a, first); k_first < first + there; k_first += a.tile) {
      const SeenKeys seen(a, head, first, k_first);
      load_tile(block, head.kv_rows(a.k, a.k_stride, k_first), a.k_stride, seen.keys, dim_there,
                1.0F, kv, tiles.tile, tiles.dim, tiles.length);
      block.sync();
      multiply_scores(block, tiles, q, kv, scores);
      block.sync();
      softmax_step(block, tiles, seen, scores, rows, out);
      load_tile(block, head.kv_rows(a.v, a.v_stride, k_first), a.v_stride, seen.keys, dim_there,
                1.0F, kv, tiles.tile, tiles.dim, tiles.length);
      block.sync();
      add_weighted<false>(block, tiles, scores, kv, out);
      block.sync();
    }
    finish(block, a, tiles, head, first, there, rows, out);
  }

 private:
  struct Rows {
    float* max;
    float* sum;
    float* factor;  ///< what the sums so far are multiplied by
  };

  /// Scores become exp(score - max), and 0 where they are not seen.
  template <class Block>
  static HR_KERNEL void softmax_step(const Block& block, const AttentionTiles& tiles,
                                     const SeenKeys& seen_keys, float* scores, const Rows& rows,
                                     float* out) {
    const int tile = tiles.tile;
    const int score_length = tiles.score_length;
    const SeenKeys seen = seen_keys;
    block.for_each(tile, [=](int64_t row) HR_KERNEL_LAMBDA {
      const int r = static_cast<int>(row);
      float max = rows.max[r];
      for (int c = seen.begin(r); c < seen.end(r); ++c) {
        const float score = scores[r * score_length + c];
        max = score > max ? score : max;
      }
      // Where nothing has been seen yet, -infinity - (-infinity) must not make NaN.
      rows.factor[r] = max == rows.max[r] ? 1.0F : kernels::exp_f32(rows.max[r] - max);
      rows.max[r] = max;
    });
    block.sync();
    block.for_each(tile * tile, [=](int64_t index) HR_KERNEL_LAMBDA {
      const int r = static_cast<int>(index) / tile;
      const int c = static_cast<int>(index) % tile;
      float& score = scores[r * score_length + c];
      const bool is_seen = c >= seen.begin(r) && c < seen.end(r);
      score = is_seen ? kernels::exp_f32(score - rows.max[r]) : 0.0F;
    });
    const int dim = tiles.dim;
    const int length = tiles.length;
    block.for_each(tile * dim, [=](int64_t index) HR_KERNEL_LAMBDA {
      const int r = static_cast<int>(index) / dim;
      out[r * length + static_cast<int>(index) % dim] *= rows.factor[r];
    });
    block.sync();
    block.for_each(tile, [=](int64_t row) HR_KERNEL_LAMBDA {
      const int r = static_cast<int>(row);
      float sum = 0;
      for (int c = seen.begin(r); c < seen.end(r); ++c) {
        sum += scores[r * score_length + c];
      }
      rows.sum[r] = rows.sum[r] * rows.factor[r] + sum;
    });
  }

  template <class Block>
  static HR_KERNEL void finish(const Block& block, const Arguments& a, const AttentionTiles& tiles,
                               const AttentionHead<T>& head, int64_t first, int there,
                               const Rows& rows, const float* out) {
    auto* const target = const_cast<T*>(head.q_rows(a.out, a.out_stride, first));
    const int dim = static_cast<int>(a.head_dim);
    const int length = tiles.length;
    block.for_each(there * dim, [=](int64_t index) HR_KERNEL_LAMBDA {
      const int r = static_cast<int>(index) / dim;
      const int c = static_cast<int>(index) % dim;
      target[r * a.out_stride + c] = kernels::from_f32<T>(out[r * length + c] / rows.sum[r]);
    });
    float* const log_sum_exp = a.log_sum_exp + head.statistics + first;
    block.for_each(there, [=](int64_t r) HR_KERNEL_LAMBDA {
      log_sum_exp[r] = rows.max[r] + kernels::log_f32(rows.sum[r]);
    });
  }
};

/// delta = sum of out * dout over the head.
template <class T>
struct AttentionDelta {
  using Arguments = AttentionArguments;
  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& a) {
    const int64_t sequence = block.index_x() / a.seq;
    const int64_t position = block.index_x() % a.seq;
    const AttentionHead<T> head(a, sequence, block.index_y());
    const T* const out = head.q_rows(a.out, a.out_stride, position);
    const T* const dout = head.q_rows(a.dout, a.out_stride, position);
    const float sum = block.reduce_sum(a.head_dim, [=](int64_t i) HR_KERNEL_LAMBDA {
      return kernels::to_f32(out[i]) * kernels::to_f32(dout[i]);
    });
    if (block.is_first_thread()) {
      a.delta[head.statistics + position] = sum;
    }
  }
};

/// What the two halves of the backward pass do with one tile of queries by keys.
template <class T>
struct AttentionBackwardTile {
  const float* q;  ///< times scale
  const float* k;
  const float* v;
  const float* dout;
  float* scores;       ///< becomes the probabilities
  float* dscores;      ///< becomes their gradients, less the scale
  float* log_sum_exp;  ///< of the rows
  float* delta;

  template <class Block>
  HR_KERNEL void load_statistics(const Block& block, const AttentionArguments& a,
                                 const AttentionHead<T>& head, int64_t first, int there) const {
    const float* const from = a.log_sum_exp + head.statistics + first;
    const float* const delta_from = a.delta + head.statistics + first;
    float* const to = log_sum_exp;
    float* const delta_to = delta;
    block.for_each(a.tile, [=](int64_t r) HR_KERNEL_LAMBDA {
      to[r] = r < there ? from[r] : 0.0F;
      delta_to[r] = r < there ? delta_from[r] : 0.0F;
    });
  }

  template <class Block>
  HR_KERNEL void run(const Block& block, const AttentionTiles& tiles,
                     const SeenKeys& seen_keys) const {
    multiply_scores(block, tiles, q, k, scores);
    multiply_scores(block, tiles, dout, v, dscores);
    block.sync();
    const int tile = tiles.tile;
    const int score_length = tiles.score_length;
    const AttentionBackwardTile self = *this;
    const SeenKeys seen = seen_keys;
    block.for_each(tile * tile, [=](int64_t index) HR_KERNEL_LAMBDA {
      const int r = static_cast<int>(index) / tile;
      const int c = static_cast<int>(index) % tile;
      const bool is_seen = r < seen.queries && c >= seen.begin(r) && c < seen.end(r);
      float& score = self.scores[r * score_length + c];
      float& dscore = self.dscores[r * score_length + c];
      score = is_seen ? kernels::exp_f32(score - self.log_sum_exp[r]) : 0.0F;
      dscore = is_seen ? score * (dscore - self.delta[r]) : 0.0F;
    });
    block.sync();
  }
};

/// dk and dv of a tile of keys: over the query heads that share it and the queries that see it.
template <class T>
struct AttentionBackwardKeys {
  using Arguments = AttentionArguments;
  static constexpr int kHeads = 6;
  static constexpr int kScores = 2;
  static constexpr int kRows = 2;

  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& a) {
    const AttentionTiles tiles(a.tile, a.head_dim);
    const AttentionPlace place(block, a, a.kv_heads);
    const int64_t group = a.q_heads / a.kv_heads;
    const int64_t first_head = place.head * group;
    const AttentionHead<T> key_head(a, place.sequence, first_head);
    const int64_t k_first = place.tile * a.tile;
    const int keys = rows_there(a, k_first);
    const int dim_there = static_cast<int>(a.head_dim);
    auto* const base = block.template shared<float>();
    float* const k = tiles.head(base, 0);
    float* const v = tiles.head(base, 1);
    float* const q = tiles.head(base, 2);
    float* const dout = tiles.head(base, 3);
    float* const dk = tiles.head(base, 4);
    float* const dv = tiles.head(base, 5);
    const AttentionBackwardTile<T> work{q,
                                        k,
                                        v,
                                        dout,
                                        tiles.scores(base, kHeads, 0),
                                        tiles.scores(base, kHeads, 1),
                                        tiles.rows(base, kHeads, kScores, 0),
                                        tiles.rows(base, kHeads, kScores, 1)};
    load_tile(block, key_head.kv_rows(a.k, a.k_stride, k_first), a.k_stride, keys, dim_there, 1.0F,
              k, tiles.tile, tiles.dim, tiles.length);
    load_tile(block, key_head.kv_rows(a.v, a.v_stride, k_first), a.v_stride, keys, dim_there, 1.0F,
              v, tiles.tile, tiles.dim, tiles.length);
    fill_tile(block, dk, tiles.tile * tiles.length, 0.0F);
    fill_tile(block, dv, tiles.tile * tiles.length, 0.0F);
    const int64_t end = key_head.end_of_queries(a, k_first + keys - 1);
    for (int64_t h = first_head; h < first_head + group; ++h) {
      const AttentionHead<T> head(a, place.sequence, h);
      for (int64_t first = k_first; first < end; first += a.tile) {
        const int there = rows_there(a, first);
        load_tile(block, head.q_rows(a.q, a.q_stride, first), a.q_stride, there, dim_there, a.scale,
                  q, tiles.tile, tiles.dim, tiles.length);
        load_tile(block, head.q_rows(a.dout, a.out_stride, first), a.out_stride, there, dim_there,
                  1.0F, dout, tiles.tile, tiles.dim, tiles.length);
        work.load_statistics(block, a, head, first, there);
        block.sync();
        work.run(block, tiles, SeenKeys(a, head, first, k_first));
        add_weighted<true>(block, tiles, work.scores, dout, dv);
        add_weighted<true>(block, tiles, work.dscores, q, dk);
        block.sync();
      }
    }
    // q carried the scale.
    store_tile(block, dk, tiles.length, 1.0F,
               const_cast<T*>(key_head.kv_rows(a.dk, a.k_stride, k_first)), a.k_stride, keys,
               dim_there);
    store_tile(block, dv, tiles.length, 1.0F,
               const_cast<T*>(key_head.kv_rows(a.dv, a.v_stride, k_first)), a.v_stride, keys,
               dim_there);
  }
};

/// dq of a tile of queries.
template <class T>
struct AttentionBackwardQueries {
  using Arguments = AttentionArguments;
  static constexpr int kHeads = 5;
  static constexpr int kScores = 2;
  static constexpr int kRows = 2;

  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& a) {
    const AttentionTiles tiles(a.tile, a.head_dim);
    const AttentionPlace place(block, a, a.q_heads);
    const AttentionHead<T> head(a, place.sequence, place.head);
    const int64_t first = (ceil_div(a.seq, a.tile) - 1 - place.tile) * a.tile;
    const int there = rows_there(a, first);
    const int dim_there = static_cast<int>(a.head_dim);
    auto* const base = block.template shared<float>();
    float* const k = tiles.head(base, 0);
    float* const v = tiles.head(base, 1);
    float* const q = tiles.head(base, 2);
    float* const dout = tiles.head(base, 3);
    float* const dq = tiles.head(base, 4);
    const AttentionBackwardTile<T> work{q,
                                        k,
                                        v,
                                        dout,
                                        tiles.scores(base, kHeads, 0),
                                        tiles.scores(base, kHeads, 1),
                                        tiles.rows(base, kHeads, kScores, 0),
                                        tiles.rows(base, kHeads, kScores, 1)};
    load_tile(block, head.q_rows(a.q, a.q_stride, first), a.q_stride, there, dim_there, a.scale, q,
              tiles.tile, tiles.dim, tiles.length);
    load_tile(block, head.q_rows(a.dout, a.out_stride, first), a.out_stride, there, dim_there, 1.0F,
              dout, tiles.tile, tiles.dim, tiles.length);
    work.load_statistics(block, a, head, first, there);
    fill_tile(block, dq, tiles.tile * tiles.length, 0.0F);
    for (int64_t k_first = head.first_key(a, first); k_first < first + there; k_first += a.tile) {
      const SeenKeys seen(a, head, first, k_first);
      load_tile(block, head.kv_rows(a.k, a.k_stride, k_first), a.k_stride, seen.keys, dim_there,
                1.0F, k, tiles.tile, tiles.dim, tiles.length);
      load_tile(block, head.kv_rows(a.v, a.v_stride, k_first), a.v_stride, seen.keys, dim_there,
                1.0F, v, tiles.tile, tiles.dim, tiles.length);
      block.sync();
      work.run(block, tiles, seen);
      add_weighted<false>(block, tiles, work.dscores, k, dq);
      block.sync();
    }
    store_tile(block, dq, tiles.length, a.scale,
               const_cast<T*>(head.q_rows(a.dq, a.q_stride, first)), a.q_stride, there, dim_there);
  }
};

}  // namespace headrace::device::cuda
