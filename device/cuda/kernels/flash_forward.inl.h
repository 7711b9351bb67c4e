#pragma once

#include "device/cuda/kernels/flash_head.inl.h"

namespace headrace::device::cuda {

/// Forward pass of FlashAttention-2 (Dao, 2023) for 16-bit types: scores on tensor cores, softmax
/// in fp32 with a running maximum, probabilities rounded to T for the product with v. The next
/// tile of keys or values arrives while the one before is worked on. grid: x tiles * batch *
/// q_heads.
template <class T, FlashVariant kVariant>
struct FlashForward {
  using Arguments = AttentionArguments;
  using Tiles = typename FlashSizes<kVariant>::Forward;
  static constexpr int kThreads = Tiles::kThreads;
  static constexpr int kOwn = Tiles::kOwn;
  static constexpr int kBlocksPerSm = Tiles::kBlocksPerSm;
  static constexpr int kSharedBytes = Tiles::kOwnBytes + 2 * Tiles::kStreamedBytes;

  template <class Block>
  static HR_FLASH void run(const Block& block, const Arguments& a) {
    constexpr int kKeyTile = Tiles::kOwnBytes;
    constexpr int kValueTile = kKeyTile + Tiles::kStreamedBytes;
    const auto own = FlashTile<T, Tiles>::of_queries(block, a);
    const FlashHead<T>& head = own.head;
    const int first = own.first;
    // Of the keys that are seen:
    const int begin = head.first_key(block, a, first);
    const int end = first + own.there;
    const auto load = [&](int tile, const void* base, int64_t stride, int at) {
      flash_load<Tiles, Tiles::kStreamed>(
          block, tile,
          head.keys(a, base, stride, at, flash_rows_there(own.seq, at, Tiles::kStreamed)));
    };

    flash_load<Tiles, Tiles::kOwn>(block, 0, head.queries(a, a.q, a.q_stride, first, own.there));
    load(kKeyTile, a.k, a.k_stride, begin);
    block.commit();
    FlashSums<Block, Tiles, Tiles::kHeadDim> sums;
    flash_zero(sums);
    Rows<Block> rows;
    for (int at = begin; at < end; at += Tiles::kStreamed) {
      block.template wait<0>();
      block.sync();  // the keys are there, the last values are used up
      load(kValueTile, a.v, a.v_stride, at);
      block.commit();
      // Here, so that no address is kept in registers from turn to turn.
      const FlashThread<Block, Tiles> thread(block);
      const FlashOwnRows<Block, Tiles, false> q(thread.own(block, 0));
      FlashSums<Block, Tiles, Tiles::kStreamed> scores;
      flash_scores<T, Tiles>(block, q, thread.tall + kKeyTile, scores);
      block.template wait<0>();
      block.sync();  // the values are there, the keys are used up
      if (at + Tiles::kStreamed < end) {
        load(kKeyTile, a.k, a.k_stride, at + Tiles::kStreamed);
      }
      block.commit();
      if (at + Tiles::kStreamed - 1 > first) {
        flash_hide<Tiles, FlashHidden::later_keys>(block, first - at, -__builtin_huge_valf(),
                                                   scores);
      }
      if (a.begins != nullptr) {
        hide_foreign(block, a, at, scores);
      }
      rows.fold(block, a.scale * kFlashLog2E, scores, sums);
      flash_add_weighted<T, Tiles>(block, scores, thread.wide + kValueTile, sums);
    }
    finish(block, a, rows, sums);
  }

 private:
  /// The running softmax of the rows of a thread. The maximum is of scores before scaling; the sum
  /// is the thread's share of it.
  template <class Block>
  struct Rows {
    using F32 = typename Block::F32;
    F32 max[Tiles::kRowTiles][2];
    F32 sum[Tiles::kRowTiles][2];

    HR_FLASH Rows() {
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          max[m][h] = -__builtin_huge_valf();
          sum[m][h] = 0.0F;
        }
      }
    }

    /// Scores become 2^(unit * (score - max)); what was summed before is scaled to the new maximum.
    /// A row that has not seen a key yet has the maximum -infinity and sums of 0.
    HR_FLASH void fold(const Block& block, float unit,
                       FlashSums<Block, Tiles, Tiles::kStreamed>& scores,
                       FlashSums<Block, Tiles, Tiles::kHeadDim>& sums) {
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          F32 top = max[m][h];
#pragma unroll
          for (int n = 0; n < Tiles::kStreamed / 8; ++n) {
            const auto& score = scores[m][n];
            top = block.max(top, block.max(score[2 * h], score[2 * h + 1]));
          }
          top = flash_quad_max(block, top);
          const F32 base = block.select(top > -__builtin_huge_valf(), top, F32(0.0F));
          const F32 factor = block.exp2((max[m][h] - base) * unit);
          const F32 shift = base * -unit;
          max[m][h] = top;
          F32 total = 0.0F;
#pragma unroll
          for (int n = 0; n < Tiles::kStreamed / 8; ++n) {
            auto& score = scores[m][n];
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
              score[e] = block.exp2(block.fma(score[e], F32(unit), shift));
              total = total + score[e];
            }
          }
          sum[m][h] = block.fma(sum[m][h], factor, total);
#pragma unroll
          for (int d = 0; d < Tiles::kHeadDim / 8; ++d) {
            auto& value = sums[m][d];
            value[2 * h] = value[2 * h] * factor;
            value[2 * h + 1] = value[2 * h + 1] * factor;
          }
        }
      }
    }

    /// factor = 1 / sum; writes the log-sum-exp of the rows that are there.
    HR_FLASH void finish(const Block& block, const Arguments& a, const FlashTile<T, Tiles>& own,
                         F32 (&factor)[Tiles::kRowTiles][2]) const {
      float* const log_sum_exp = a.log_sum_exp + own.head.statistics(a) + own.first;
      const FlashThread<Block, Tiles> thread(block);
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const F32 total = flash_quad_sum(block, sum[m][h]);
          const auto row = thread.row + (16 * m + 8 * h);
          factor[m][h] = 1.0F / total;
          block.store_f32(log_sum_exp, row, max[m][h] * a.scale + block.log(total),
                          (row < own.there) & (thread.column == 0));
        }
      }
    }
  };

  // These two work out again which tile it is, to keep that out of the registers of the loop.
  template <class Block>
  static HR_FLASH void hide_foreign(const Block& block, const Arguments& a, int at,
                                    FlashSums<Block, Tiles, Tiles::kStreamed>& scores) {
    const auto own = FlashTile<T, Tiles>::of_queries(block, a);
    if (at < own.head.first_key(block, a, own.last())) {
      flash_hide_foreign<Tiles, FlashForeign::earlier_keys>(
          block, a.begins + own.head.first_row + own.first, own.there, at, -__builtin_huge_valf(),
          scores);
    }
  }

  template <class Block>
  static HR_FLASH void finish(const Block& block, const Arguments& a, const Rows<Block>& rows,
                              const FlashSums<Block, Tiles, Tiles::kHeadDim>& sums) {
    const auto own = FlashTile<T, Tiles>::of_queries(block, a);
    typename Block::F32 factor[Tiles::kRowTiles][2];
    rows.finish(block, a, own, factor);
    flash_store<T, Tiles>(block, sums, factor,
                          own.head.mutable_queries(a, a.out, a.out_stride, own.first, own.there));
  }
};

}  // namespace headrace::device::cuda
