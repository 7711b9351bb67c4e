#pragma once

#include "device/cuda/kernels/flash_warp.inl.h"
#include "device/kernels/math.inl.h"

namespace headrace::device::cuda {

/// The operands of one query head, or of one key head with the query heads that share it.
template <class T>
struct FlashHead {
  /// `index` of batch * q_heads.
  HR_KERNEL FlashHead(const AttentionArguments& a, int index)
      : first_row(index / static_cast<int>(a.q_heads) * a.seq),
        statistics(index * a.seq),
        head_dim(static_cast<int>(a.head_dim)),
        q_column(index % static_cast<int>(a.q_heads) * head_dim),
        kv_column(index % static_cast<int>(a.q_heads) / static_cast<int>(a.q_heads / a.kv_heads) *
                  head_dim),
        is_aligned(a.is_aligned) {}

  int64_t first_row;
  int64_t statistics;  ///< of log_sum_exp and delta
  int head_dim;
  int q_column;
  int kv_column;
  bool is_aligned;

  /// The next query head of the same group.
  HR_KERNEL void advance(const AttentionArguments& a) {
    q_column += head_dim;
    statistics += a.seq;
  }

  /// Rows from position `at` on of q, out or their gradients.
  HR_KERNEL FlashRows<const T> queries(const void* base, int64_t stride, int64_t at,
                                       int there) const {
    return rows(static_cast<const T*>(base), q_column, stride, at, there);
  }
  HR_KERNEL FlashRows<T> mutable_queries(const void* base, int64_t stride, int64_t at,
                                         int there) const {
    return rows(const_cast<T*>(static_cast<const T*>(base)), q_column, stride, at, there);
  }
  /// Rows of k, v or their gradients.
  HR_KERNEL FlashRows<const T> keys(const void* base, int64_t stride, int64_t at, int there) const {
    return rows(static_cast<const T*>(base), kv_column, stride, at, there);
  }
  HR_KERNEL FlashRows<T> mutable_keys(void* base, int64_t stride, int64_t at, int there) const {
    return rows(static_cast<T*>(base), kv_column, stride, at, there);
  }

 private:
  template <class V>
  HR_KERNEL FlashRows<V> rows(V* base, int column, int64_t stride, int64_t at, int there) const {
    return {base + (first_row + at) * stride + column, static_cast<int>(stride), there, head_dim,
            is_aligned};
  }
};

/// Which tile of which head a block has. Blocks that start first have the most work: those of the
/// longest tile of every head of a section, and a section is as many heads as the GPU's L2 cache
/// can hold the streamed operands of.
template <class T, class Tiles>
struct FlashTile {
  FlashHead<T> head;  ///< for keys the first of those that share them
  int seq;
  int first;  ///< own row
  int there;  ///< own rows that the sequence has

  /// The last queries see most keys.
  template <class Block>
  static HR_KERNEL FlashTile of_queries(const Block& block, const AttentionArguments& a) {
    const Place place(block.index(), a, a.q_heads);
    return {FlashHead<T>(a, place.head), a, place.tiles - 1 - place.rank};
  }
  /// The first keys are seen by most queries.
  template <class Block>
  static HR_KERNEL FlashTile of_keys(const Block& block, const AttentionArguments& a) {
    const Place place(block.index(), a, a.kv_heads);
    return {FlashHead<T>(a, place.head * static_cast<int>(a.q_heads / a.kv_heads)), a, place.rank};
  }

 private:
  struct Place {
    int tiles;
    int rank;
    int head;  ///< of batch * heads

    HR_KERNEL Place(int index, const AttentionArguments& a, int64_t heads)
        : tiles(static_cast<int>(a.seq + Tiles::kOwn - 1) / Tiles::kOwn) {
      const int section = static_cast<int>(a.section);
      const int before = index / (tiles * section) * section;
      const int left = static_cast<int>(a.batch * heads) - before;
      const int size = left < section ? left : section;
      const int within = index - before * tiles;
      rank = within / size;
      head = before + within % size;
    }
  };

  HR_KERNEL FlashTile(const FlashHead<T>& of, const AttentionArguments& a, int tile)
      : head(of),
        seq(static_cast<int>(a.seq)),
        first(tile * Tiles::kOwn),
        there(flash_rows_there(seq, first, Tiles::kOwn)) {}
};

}  // namespace headrace::device::cuda
