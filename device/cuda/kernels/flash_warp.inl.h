#pragma once

#include "device/cuda/kernels/flash_tiles.inl.h"

/// What the kernels of tensor-core attention share: tiles from memory, products of tiles by
/// fragments of mma.sync.m16n8k16, tiles back to memory.
///
/// A kernel is the program of one thread, written over a block context that gives it values
/// (F32, I32, U32, Mask) and operations of the warp. Under nvcc (FlashBlock) they are plain
/// numbers and inline PTX. In the tests (LockstepBlock) each is the register of all threads of
/// the block at once. So control flow must be the same for the whole block; what differs between
/// threads goes through masks.
namespace headrace::device::cuda {

/// Where a thread stands in fragments: of accumulators (row, column) and of the 8 x 8 matrices
/// that ldmatrix takes row addresses of.
template <class Block, class Tiles>
struct FlashThread {
  using I32 = typename Block::I32;

  /// Accumulators [m][n][2 h + e] of the thread are at own row `row` + 16 m + 8 h and streamed
  /// row (or dimension) `column` + 8 n + e.
  I32 row;
  I32 column;
  /// Offset in a tile of the row that the thread names for 16 rows by 16 columns, taken as rows of
  /// an A operand or, transposed, of a B operand.
  I32 wide;
  /// The same for 16 columns of a B operand by 16 steps of the inner dimension.
  I32 tall;

  HR_FLASH explicit FlashThread(const Block& block) {
    const I32 lane = block.thread() & 31;
    row = (block.thread() >> 5) * (16 * Tiles::kRowTiles) + (lane >> 2);
    column = (lane & 3) << 1;
    wide = flash_offset<Tiles>(lane & 15, lane >> 4);
    tall = flash_offset<Tiles>((lane & 7) | ((lane >> 4) << 3), (lane >> 3) & 1);
  }

  /// Of the warp's own rows in a tile at `tile`.
  HR_FLASH I32 own(const Block& block, int tile) const {
    return wide + (block.thread() >> 5) * (16 * Tiles::kRowTiles * Tiles::kRowBytes) + tile;
  }
};

/// A matrix in memory as one block reads or writes it.
template <class T>
struct FlashRows {
  T* first;         ///< row 0, column 0 of the head
  int stride;       ///< elements
  int there;        ///< rows from here on are none
  int head_dim;     ///< columns from here on are none
  bool is_aligned;  ///< addresses of 8 elements are multiples of 16 bytes
};

/// Starts the copy of kRows rows into the tile at `tile`. What is not there becomes zero. Rows that
/// are not aligned are copied at once, by hand.
template <class Tiles, int kRows, class Block, class T>
HR_FLASH void flash_load(const Block& block, int tile, const FlashRows<const T>& rows) {
  using I32 = typename Block::I32;
  constexpr int kStep = Tiles::kThreads / Tiles::kChunks;  // rows that all threads copy at once
  static_assert(kStep % 8 == 0 && kRows % kStep == 0, "rows of a pass are swizzled alike");
  const I32 row = block.thread() / Tiles::kChunks;
  const I32 chunk = block.thread() % Tiles::kChunks;
  const I32 column = chunk * 8;
  const I32 target = flash_offset<Tiles>(row, chunk) + tile;
  const I32 source = row * rows.stride + column;
  if (rows.is_aligned) {
#pragma unroll
    for (int pass = 0; pass < kRows / kStep; ++pass) {
      block.copy_async_16(target + pass * kStep * Tiles::kRowBytes, rows.first,
                          source + pass * kStep * rows.stride,
                          (row + pass * kStep < rows.there) & (column < rows.head_dim));
    }
    return;
  }
  // Not unrolled: the registers are full at this point, and it is rarely needed.
#pragma unroll 1
  for (int index = 0; index < kRows / kStep * 4; ++index) {
    const int pass = index / 4;
    const int e = index % 4 * 2;
    const I32 from = source + (pass * kStep * rows.stride + e);
    const auto is_row = row + pass * kStep < rows.there;
    const auto low = block.load_half(rows.first, from, is_row & (column + e < rows.head_dim));
    const auto high =
        block.load_half(rows.first, from + 1, is_row & (column + (e + 1) < rows.head_dim));
    block.store_shared_4(target + (pass * kStep * Tiles::kRowBytes + e * 2), low | (high << 16));
  }
}

/// Fragments of the warp's own rows as an A operand.
template <class Block, class Tiles, bool kHeld>
struct FlashOwnRows {
  using I32 = typename Block::I32;
  using U32 = typename Block::U32;
  static constexpr int kSteps = kHeld ? Tiles::kDimSteps : 1;

  HR_FLASH explicit FlashOwnRows(const I32& own) : at(own) {}

  I32 at;
  U32 held[kSteps][Tiles::kRowTiles][4];

  /// The tile must be there.
  HR_FLASH void take(const Block& block) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int m = 0; m < Tiles::kRowTiles; ++m) {
          block.load_matrices((at ^ (step * 32)) + m * 16 * Tiles::kRowBytes, held[step][m]);
        }
      }
    }
  }

  HR_FLASH void fragment(const Block& block, int step, int m, U32 (&a)[4]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = held[step][m][i];
      }
    } else {
      block.load_matrices((at ^ (step * 32)) + m * 16 * Tiles::kRowBytes, a);
    }
  }
};

/// Accumulators of own rows by kColumns columns.
template <class Block, class Tiles, int kColumns>
using FlashSums = typename Block::F32[Tiles::kRowTiles][kColumns / 8][4];

template <class F32, int kRows, int kTiles>
HR_FLASH void flash_zero(F32 (&sums)[kRows][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[m][n][i] = 0.0F;
      }
    }
  }
}

/// What a row of the scores does not see of the streamed tile.
enum class FlashHidden : int {
  later_keys = 1,        ///< rows are queries: query r sees the keys up to offset + r
  earlier_queries = -1,  ///< rows are keys: key r is seen by the queries from r - offset on
};

/// That becomes `hidden`.
template <class Tiles, FlashHidden kWhat, class Block>
HR_FLASH void flash_hide(const Block& block, int offset, float hidden,
                         FlashSums<Block, Tiles, Tiles::kStreamed>& scores) {
  constexpr int kSign = static_cast<int>(kWhat);
  const FlashThread<Block, Tiles> thread(block);
  const auto beyond =
      (kSign > 0 ? thread.column - thread.row : thread.row - thread.column) - offset;
#pragma unroll
  for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Tiles::kStreamed / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[m][n][i] = block.select(beyond + kSign * (8 * n + i % 2 - 16 * m - i / 2 * 8) > 0,
                                       typename Block::F32(hidden), scores[m][n][i]);
      }
    }
  }
}

/// What a row of the scores does not see of the streamed tile because a Visibility hides it.
enum class FlashForeign : int {
  earlier_keys,   ///< rows are queries: keys before the first that they see
  later_queries,  ///< rows are keys: queries behind the last that sees them
};

/// That becomes `hidden`. `borders`: begin or end of what each own row sees or is seen by, counted
/// as `at`, the position of the streamed tile; own rows from `there` on have none.
template <class Tiles, FlashForeign kWhat, class Block>
HR_FLASH void flash_hide_foreign(const Block& block, const int32_t* borders, int there, int at,
                                 float hidden, FlashSums<Block, Tiles, Tiles::kStreamed>& scores) {
  constexpr bool kEarlier = kWhat == FlashForeign::earlier_keys;
  const FlashThread<Block, Tiles> thread(block);
#pragma unroll
  for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto row = thread.row + (16 * m + 8 * h);
      const auto border = block.load_i32(borders, row, row < there) - at;
#pragma unroll
      for (int n = 0; n < Tiles::kStreamed / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto streamed = thread.column + (8 * n + e);
          auto& score = scores[m][n][2 * h + e];
          score = block.select(kEarlier ? streamed < border : streamed >= border,
                               typename Block::F32(hidden), score);
        }
      }
    }
  }
}

/// scores = own rows times streamed rows, over the head. `streamed`: FlashThread::tall in its tile.
template <class T, class Tiles, class Block, class Own>
HR_FLASH void flash_scores(const Block& block, const Own& own, typename Block::I32 streamed,
                           FlashSums<Block, Tiles, Tiles::kStreamed>& scores) {
  using U32 = typename Block::U32;
  flash_zero(scores);
#pragma unroll
  for (int step = 0; step < Tiles::kDimSteps; ++step) {
    U32 a[Tiles::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < Tiles::kRowTiles; ++m) {
      own.fragment(block, step, m, a[m]);
    }
#pragma unroll
    for (int n = 0; n < Tiles::kRowSteps; ++n) {
      U32 b[4];
      block.load_matrices((streamed ^ (step * 32)) + n * 16 * Tiles::kRowBytes, b);
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
        block.template multiply<T>(scores[m][2 * n], a[m], b[0], b[1]);
        block.template multiply<T>(scores[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// sums += weights times streamed rows; the weights are rounded to T. `streamed`:
/// FlashThread::wide in its tile.
template <class T, class Tiles, class Block>
HR_FLASH void flash_add_weighted(const Block& block,
                                 const FlashSums<Block, Tiles, Tiles::kStreamed>& weights,
                                 typename Block::I32 streamed,
                                 FlashSums<Block, Tiles, Tiles::kHeadDim>& sums) {
  using U32 = typename Block::U32;
#pragma unroll
  for (int step = 0; step < Tiles::kRowSteps; ++step) {
    // Two accumulators of 8 columns lie as an A operand of 16 does.
    U32 a[Tiles::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& pair = weights[m][2 * step + i / 2];
        a[m][i] = block.template pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int d = 0; d < Tiles::kDimSteps; ++d) {
      U32 b[4];
      block.load_matrices_transposed((streamed ^ (d * 32)) + step * 16 * Tiles::kRowBytes, b);
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
        block.template multiply<T>(sums[m][2 * d], a[m], b[0], b[1]);
        block.template multiply<T>(sums[m][2 * d + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Four words of four lanes transposed: afterwards lane t of a quad has word t of each, in order.
template <class Block>
HR_FLASH void flash_transpose_quad(const Block& block, typename Block::U32 (&words)[4]) {
  using U32 = typename Block::U32;
  const auto is_odd = (block.thread() & 1) != 0;
  const auto is_high = (block.thread() & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const U32 got = block.shuffle_xor(block.select(is_odd, words[i], words[i + 1]), 1);
    words[i] = block.select(is_odd, got, words[i]);
    words[i + 1] = block.select(is_odd, words[i + 1], got);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const U32 got = block.shuffle_xor(block.select(is_high, words[i], words[i + 2]), 2);
    words[i] = block.select(is_high, got, words[i]);
    words[i + 2] = block.select(is_high, words[i + 2], got);
  }
}

/// Writes own rows, each times its factor [m][h].
template <class T, class Tiles, class Block>
HR_FLASH void flash_store(const Block& block, const FlashSums<Block, Tiles, Tiles::kHeadDim>& sums,
                          const typename Block::F32 (&factor)[Tiles::kRowTiles][2],
                          const FlashRows<T>& rows) {
  using I32 = typename Block::I32;
  using U32 = typename Block::U32;
  const FlashThread<Block, Tiles> thread(block);
#pragma unroll
  for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const I32 row = thread.row + (16 * m + 8 * h);
      const I32 target = row * rows.stride;
      const auto is_there = row < rows.there;
#pragma unroll
      for (int d = 0; d < Tiles::kHeadDim / 8; d += 4) {
        U32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto& sum = sums[m][d + i];
          words[i] =
              block.template pack<T>(sum[2 * h] * factor[m][h], sum[2 * h + 1] * factor[m][h]);
        }
        // The quad has 2 columns of each of 4 tiles; now each lane has 8 columns of one.
        flash_transpose_quad(block, words);
        const I32 column = (thread.column << 2) + 8 * d;
        if (rows.is_aligned) {
          block.store_16(rows.first, target + column, words, is_there & (column < rows.head_dim));
        } else {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            block.store_half(rows.first, target + column + e, words[e / 2] >> (e % 2 * 16),
                             is_there & (column + e < rows.head_dim));
          }
        }
      }
    }
  }
}

/// Sum or maximum over the four lanes that share a row.
template <class Block>
HR_FLASH typename Block::F32 flash_quad_sum(const Block& block, typename Block::F32 value) {
  value = value + block.shuffle_xor(value, 1);
  return value + block.shuffle_xor(value, 2);
}
template <class Block>
HR_FLASH typename Block::F32 flash_quad_max(const Block& block, typename Block::F32 value) {
  value = block.max(value, block.shuffle_xor(value, 1));
  return block.max(value, block.shuffle_xor(value, 2));
}

inline constexpr float kFlashLog2E = 0x1.715476p+0F;

}  // namespace headrace::device::cuda
