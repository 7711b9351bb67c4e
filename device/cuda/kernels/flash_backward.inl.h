#pragma once

#include "device/cuda/kernels/flash_head.inl.h"

/// Backward pass of tensor-core attention, deterministic: dk and dv in one kernel that goes over
/// queries, dq in another that goes over keys. Scores and their gradients are computed in both:
/// seven products of tiles where five would do with atomic sums in dq.
namespace headrace::device::cuda {

/// Shared memory of both kernels: two tiles of own rows, then two stages of two streamed tiles,
/// then two stages of two numbers for each streamed row.
template <class Tiles>
struct FlashBackwardLayout {
  static constexpr int kStages = 2 * Tiles::kOwnBytes;
  static constexpr int kStageBytes = 2 * Tiles::kStreamedBytes;
  static constexpr int kStatistics = kStages + 2 * kStageBytes;
  static constexpr int kStatisticBytes = Tiles::kStreamed * int{sizeof(float)};

  HR_FLASH static int tiles(int stage) { return kStages + stage * kStageBytes; }
  HR_FLASH static int statistics(int stage) { return kStatistics + 2 * stage * kStatisticBytes; }
};

/// The same factor for all rows.
template <class Block, class Tiles>
struct FlashFactor {
  typename Block::F32 of[Tiles::kRowTiles][2];

  HR_FLASH explicit FlashFactor(float value) {
#pragma unroll
    for (int m = 0; m < Tiles::kRowTiles; ++m) {
      of[m][0] = value;
      of[m][1] = value;
    }
  }
};

/// dk and dv of a tile of keys, over the query heads that share it and the queries that see it.
/// Keys are the rows: probabilities come out of the products as the next ones take them, so they
/// never leave the registers. grid: x tiles * batch * kv_heads.
template <class T, FlashVariant kVariant>
struct FlashBackwardKeys {
  using Arguments = AttentionArguments;
  using Tiles = typename FlashSizes<kVariant>::Keys;
  using Layout = FlashBackwardLayout<Tiles>;
  static constexpr int kThreads = Tiles::kThreads;
  static constexpr int kOwn = Tiles::kOwn;
  static constexpr int kBlocksPerSm = Tiles::kBlocksPerSm;
  static constexpr int kSharedBytes = Layout::kStatistics + 4 * Layout::kStatisticBytes;

  template <class Block>
  static HR_FLASH void run(const Block& block, const Arguments& a) {
    const auto own = FlashTile<T, Tiles>::of_keys(block, a);
    const FlashHead<T>& head = own.head;
    const int first = own.first;
    flash_load<Tiles, Tiles::kOwn>(block, 0, head.keys(a, a.k, a.k_stride, first, own.there));
    flash_load<Tiles, Tiles::kOwn>(block, Tiles::kOwnBytes,
                                   head.keys(a, a.v, a.v_stride, first, own.there));
    FlashHead<T> coming = head;
    int coming_at = first;
    load_stage(block, a, coming, coming_at, 0);
    block.commit();
    FlashSums<Block, Tiles, Tiles::kHeadDim> dk;
    FlashSums<Block, Tiles, Tiles::kHeadDim> dv;
    flash_zero(dk);
    flash_zero(dv);
    int stage = 0;
    for (int left = (head.end_of_queries(block, a, own.last()) - first + Tiles::kStreamed - 1) /
                    Tiles::kStreamed * static_cast<int>(a.q_heads / a.kv_heads);
         left > 0; --left) {
      const int at = coming_at;
      block.template wait<0>();
      block.sync();  // this stage is there, the other one is used up
      if (left > 1) {
        coming_at += Tiles::kStreamed;
        if (coming_at >= head.end_of_queries(block, a, own.last())) {
          coming_at = first;
          ++coming.q_head;
        }
        load_stage(block, a, coming, coming_at, 1 - stage);
      }
      block.commit();
      const Turn work{at, Layout::tiles(stage), Layout::statistics(stage)};
      add_turn(block, a, head, first, work, dk, dv);
      stage = 1 - stage;
    }
    finish(block, a, dk, dv);
  }

 private:
  struct Turn {
    int at;          ///< the first query
    int tile;        ///< of q; that of dout follows
    int statistics;  ///< log-sum-exp; delta follows
  };

  // These two work out again which tile it is, to keep that out of the registers of the loop.
  template <class Block>
  static HR_FLASH void hide_foreign(const Block& block, const Arguments& a, int at,
                                    FlashSums<Block, Tiles, Tiles::kStreamed>& p) {
    const auto own = FlashTile<T, Tiles>::of_keys(block, a);
    flash_hide_foreign<Tiles, FlashForeign::later_queries>(
        block, a.ends + own.head.first_row + own.first, own.there, at, 0.0F, p);
  }

  template <class Block>
  static HR_FLASH void finish(const Block& block, const Arguments& a,
                              const FlashSums<Block, Tiles, Tiles::kHeadDim>& dk,
                              const FlashSums<Block, Tiles, Tiles::kHeadDim>& dv) {
    const auto own = FlashTile<T, Tiles>::of_keys(block, a);
    flash_store<T, Tiles>(block, dk, FlashFactor<Block, Tiles>(a.scale).of,
                          own.head.mutable_keys(a, a.dk, a.k_stride, own.first, own.there));
    flash_store<T, Tiles>(block, dv, FlashFactor<Block, Tiles>(1.0F).of,
                          own.head.mutable_keys(a, a.dv, a.v_stride, own.first, own.there));
  }

  template <class Block>
  static HR_FLASH void load_stage(const Block& block, const Arguments& a, const FlashHead<T>& head,
                                  int at, int stage) {
    const int seq = static_cast<int>(a.seq);
    const int there = flash_rows_there(seq, at, Tiles::kStreamed);
    const int tile = Layout::tiles(stage);
    flash_load<Tiles, Tiles::kStreamed>(block, tile, head.queries(a, a.q, a.q_stride, at, there));
    flash_load<Tiles, Tiles::kStreamed>(block, tile + Tiles::kStreamedBytes,
                                        head.queries(a, a.dout, a.out_stride, at, there));
    static_assert(Tiles::kThreads >= 2 * Tiles::kStreamed);
    const auto thread = block.thread();
    const auto row = thread % Tiles::kStreamed;
    const auto target = thread * int{sizeof(float)} + Layout::statistics(stage);
    block.copy_async_4(target, a.log_sum_exp + head.statistics(a) + at, row,
                       thread < Tiles::kStreamed, row < there);
    block.copy_async_4(target, a.delta + head.statistics(a) + at, row,
                       (thread >= Tiles::kStreamed) & (thread < 2 * Tiles::kStreamed), row < there);
  }

  template <class Block>
  static HR_FLASH void add_turn(const Block& block, const Arguments& a, const FlashHead<T>& head,
                                int first, const Turn& turn,
                                FlashSums<Block, Tiles, Tiles::kHeadDim>& dk,
                                FlashSums<Block, Tiles, Tiles::kHeadDim>& dv) {
    using F32 = typename Block::F32;
    const float unit = a.scale * kFlashLog2E;
    // Worked out again where it is needed: the registers do not hold it all the time.
    const FlashThread<Block, Tiles> thread(block);
    const FlashOwnRows<Block, Tiles, false> k(thread.own(block, 0));
    const FlashOwnRows<Block, Tiles, false> v(thread.own(block, Tiles::kOwnBytes));
    const int dout_tile = turn.tile + Tiles::kStreamedBytes;
    const auto statistics = thread.column * int{sizeof(float)} + turn.statistics;
    FlashSums<Block, Tiles, Tiles::kStreamed> p;
    flash_scores<T, Tiles>(block, k, thread.tall + turn.tile, p);
#pragma unroll
    for (int n = 0; n < Tiles::kStreamed / 8; ++n) {
      F32 log_sum_exp[2];
      block.load_shared_2(statistics + n * 32, log_sum_exp);
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[m][n][i] =
              block.exp2(block.fma(p[m][n][i], F32(unit), log_sum_exp[i % 2] * -kFlashLog2E));
        }
      }
    }
    if (turn.at - first < Tiles::kOwn - 1) {
      // Queries that are not there add nothing: their rows of q and dout are zeros, and so is their
      // delta.
      flash_hide<Tiles, FlashHidden::earlier_queries>(block, turn.at - first, 0.0F, p);
    }
    if (a.ends != nullptr && turn.at + Tiles::kStreamed > head.end_of_queries(block, a, first)) {
      hide_foreign(block, a, turn.at, p);
    }
    flash_add_weighted<T, Tiles>(block, p, FlashThread<Block, Tiles>(block).wide + dout_tile, dv);
    FlashSums<Block, Tiles, Tiles::kStreamed> ds;
    flash_scores<T, Tiles>(block, v, thread.tall + dout_tile, ds);
#pragma unroll
    for (int n = 0; n < Tiles::kStreamed / 8; ++n) {
      F32 delta[2];
      block.load_shared_2(statistics + (n * 32 + Layout::kStatisticBytes), delta);
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta[i % 2]);
        }
      }
    }
    flash_add_weighted<T, Tiles>(block, ds, FlashThread<Block, Tiles>(block).wide + turn.tile, dk);
  }
};

/// dq of a tile of queries, over the keys that they see. grid: x tiles * batch * q_heads.
template <class T, FlashVariant kVariant>
struct FlashBackwardQueries {
  using Arguments = AttentionArguments;
  using Tiles = typename FlashSizes<kVariant>::Queries;
  using Layout = FlashBackwardLayout<Tiles>;
  static constexpr int kThreads = Tiles::kThreads;
  static constexpr int kOwn = Tiles::kOwn;
  static constexpr int kBlocksPerSm = Tiles::kBlocksPerSm;
  static constexpr int kSharedBytes = Layout::kStatistics;

  template <class Block>
  static HR_FLASH void run(const Block& block, const Arguments& a) {
    using F32 = typename Block::F32;
    using Own = FlashOwnRows<Block, Tiles, Tiles::kHoldOwn>;
    const auto own = FlashTile<T, Tiles>::of_queries(block, a);
    const FlashHead<T>& head = own.head;
    const int first = own.first;
    // Of the keys that are seen:
    const int begin = head.first_key(block, a, first);
    const int end = first + own.there;
    const FlashThread<Block, Tiles> thread(block);

    flash_load<Tiles, Tiles::kOwn>(block, 0, head.queries(a, a.q, a.q_stride, first, own.there));
    flash_load<Tiles, Tiles::kOwn>(block, Tiles::kOwnBytes,
                                   head.queries(a, a.dout, a.out_stride, first, own.there));
    load_stage(block, a, head, begin, 0);
    block.commit();
    Own q(thread.own(block, 0));
    Own dout(thread.own(block, Tiles::kOwnBytes));
    const Statistics<Block> statistics(block, a, head.statistics(a) + first, own.there);
    FlashSums<Block, Tiles, Tiles::kHeadDim> dq;
    flash_zero(dq);
    if constexpr (Tiles::kHoldOwn) {
      block.template wait<0>();
      block.sync();
      q.take(block);
      dout.take(block);
    }
    int stage = 0;
    for (int at = begin; at < end; at += Tiles::kStreamed) {
      block.template wait<0>();
      block.sync();  // this stage is there, the other one is used up
      if (at + Tiles::kStreamed < end) {
        load_stage(block, a, head, at + Tiles::kStreamed, 1 - stage);
      }
      block.commit();
      const int tile = Layout::tiles(stage);
      FlashSums<Block, Tiles, Tiles::kStreamed> p;
      FlashSums<Block, Tiles, Tiles::kStreamed> ds;
      flash_scores<T, Tiles>(block, q, thread.tall + tile, p);
      flash_scores<T, Tiles>(block, dout, thread.tall + (tile + Tiles::kStreamedBytes), ds);
      statistics.apply(block, F32(a.scale * kFlashLog2E), p, ds);
      if (at + Tiles::kStreamed - 1 > first) {
        flash_hide<Tiles, FlashHidden::later_keys>(block, first - at, 0.0F, ds);
      }
      if (a.begins != nullptr && at < head.first_key(block, a, own.last())) {
        flash_hide_foreign<Tiles, FlashForeign::earlier_keys>(
            block, a.begins + head.first_row + first, own.there, at, 0.0F, ds);
      }
      flash_add_weighted<T, Tiles>(block, ds, thread.wide + tile, dq);
      stage = 1 - stage;
    }
    finish(block, a, dq);
  }

 private:
  /// Works out again which tile it is, to keep that out of the registers of the loop.
  template <class Block>
  static HR_FLASH void finish(const Block& block, const Arguments& a,
                              const FlashSums<Block, Tiles, Tiles::kHeadDim>& dq) {
    const auto own = FlashTile<T, Tiles>::of_queries(block, a);
    flash_store<T, Tiles>(block, dq, FlashFactor<Block, Tiles>(a.scale).of,
                          own.head.mutable_queries(a, a.dq, a.q_stride, own.first, own.there));
  }

  template <class Block>
  static HR_FLASH void load_stage(const Block& block, const Arguments& a, const FlashHead<T>& head,
                                  int at, int stage) {
    const int seq = static_cast<int>(a.seq);
    const int there = flash_rows_there(seq, at, Tiles::kStreamed);
    const int tile = Layout::tiles(stage);
    flash_load<Tiles, Tiles::kStreamed>(block, tile, head.keys(a, a.k, a.k_stride, at, there));
    flash_load<Tiles, Tiles::kStreamed>(block, tile + Tiles::kStreamedBytes,
                                        head.keys(a, a.v, a.v_stride, at, there));
  }

  /// Log-sum-exp (in units of ln 2, negative) and delta of a thread's rows.
  template <class Block>
  struct Statistics {
    using F32 = typename Block::F32;
    F32 shift[Tiles::kRowTiles][2];
    F32 delta[Tiles::kRowTiles][2];

    HR_FLASH Statistics(const Block& block, const Arguments& a, int64_t first, int there) {
      const FlashThread<Block, Tiles> thread(block);
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const auto row = thread.row + (16 * m + 8 * h);
          shift[m][h] = block.load_f32(a.log_sum_exp + first, row, row < there) * -kFlashLog2E;
          delta[m][h] = block.load_f32(a.delta + first, row, row < there);
        }
      }
    }

    /// Gradients of probabilities become those of scores.
    HR_FLASH void apply(const Block& block, const F32& unit,
                        const FlashSums<Block, Tiles, Tiles::kStreamed>& scores,
                        FlashSums<Block, Tiles, Tiles::kStreamed>& ds) const {
#pragma unroll
      for (int m = 0; m < Tiles::kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < Tiles::kStreamed / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const F32 p = block.exp2(block.fma(scores[m][n][i], unit, shift[m][i / 2]));
            ds[m][n][i] = p * (ds[m][n][i] - delta[m][i / 2]);
          }
        }
      }
    }
  };
};

}  // namespace headrace::device::cuda
