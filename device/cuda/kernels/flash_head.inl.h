#pragma once

#include "device/cuda/kernels/flash_warp.inl.h"
#include "device/kernels/math.inl.h"

namespace headrace::device::cuda {

/// The operands of one query head, or of one key head with the query heads that share it. Few
/// numbers, since they stay in registers; the rest is worked out where it is needed.
template <class T>
struct FlashHead {
  /// `index` of batch * q_heads.
  HR_FLASH FlashHead(const AttentionArguments& a, int index)
      : first_row(index / static_cast<int>(a.q_heads) * a.seq),
        q_head(index % static_cast<int>(a.q_heads)),
        kv_column(q_head / static_cast<int>(a.q_heads / a.kv_heads) *
                  static_cast<int>(a.head_dim)) {}

  int64_t first_row;
  int q_head;
  int kv_column;

  /// Where log_sum_exp and delta of the head begin.
  HR_FLASH int64_t statistics(const AttentionArguments& a) const {
    return first_row * a.q_heads + q_head * a.seq;
  }

  /// The first key that a query sees; later queries see none before it.
  template <class Block>
  HR_FLASH int first_key(const Block& block, const AttentionArguments& a, int query) const {
    return a.begins == nullptr ? 0 : block.read_i32(a.begins + first_row + query);
  }
  /// The query behind the last one that sees a key; no later one sees a key before it.
  template <class Block>
  HR_FLASH int end_of_queries(const Block& block, const AttentionArguments& a, int key) const {
    return a.ends == nullptr ? static_cast<int>(a.seq) : block.read_i32(a.ends + first_row + key);
  }

  /// Rows from position `at` on of q, out or their gradients.
  HR_FLASH FlashRows<const T> queries(const AttentionArguments& a, const void* base, int64_t stride,
                                      int at, int there) const {
    return rows(a, static_cast<const T*>(base), q_column(a), stride, at, there);
  }
  HR_FLASH FlashRows<T> mutable_queries(const AttentionArguments& a, const void* base,
                                        int64_t stride, int at, int there) const {
    return rows(a, const_cast<T*>(static_cast<const T*>(base)), q_column(a), stride, at, there);
  }
  /// Rows of k, v or their gradients.
  HR_FLASH FlashRows<const T> keys(const AttentionArguments& a, const void* base, int64_t stride,
                                   int at, int there) const {
    return rows(a, static_cast<const T*>(base), kv_column, stride, at, there);
  }
  HR_FLASH FlashRows<T> mutable_keys(const AttentionArguments& a, void* base, int64_t stride,
                                     int at, int there) const {
    return rows(a, static_cast<T*>(base), kv_column, stride, at, there);
  }

 private:
  HR_FLASH int q_column(const AttentionArguments& a) const {
    return q_head * static_cast<int>(a.head_dim);
  }
  template <class V>
  HR_FLASH FlashRows<V> rows(const AttentionArguments& a, V* base, int column, int64_t stride,
                             int at, int there) const {
    return {base + (first_row + at) * stride + column, static_cast<int>(stride), there,
            static_cast<int>(a.head_dim), a.is_aligned};
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

  HR_FLASH int last() const { return first + there - 1; }

  /// The last queries see most keys.
  template <class Block>
  static HR_FLASH FlashTile of_queries(const Block& block, const AttentionArguments& a) {
    const Place place(block.index(), a, a.q_heads);
    return {FlashHead<T>(a, place.head), a, place.tiles - 1 - place.rank};
  }
  /// The first keys are seen by most queries.
  template <class Block>
  static HR_FLASH FlashTile of_keys(const Block& block, const AttentionArguments& a) {
    const Place place(block.index(), a, a.kv_heads);
    return {FlashHead<T>(a, place.head * static_cast<int>(a.q_heads / a.kv_heads)), a, place.rank};
  }

 private:
  struct Place {
    int tiles;
    int rank;
    int head;  ///< of batch * heads

    HR_FLASH Place(int index, const AttentionArguments& a, int64_t heads)
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

  HR_FLASH FlashTile(const FlashHead<T>& of, const AttentionArguments& a, int tile)
      : head(of),
        seq(static_cast<int>(a.seq)),
        first(tile * Tiles::kOwn),
        there(flash_rows_there(seq, first, Tiles::kOwn)) {}
};

}  // namespace headrace::device::cuda
