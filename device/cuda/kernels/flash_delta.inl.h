#pragma once

#include "device/cuda/kernels/flash_warp.inl.h"

namespace headrace::device::cuda {

/// delta = sum of out * dout over the head, which the backward pass takes off the gradients of
/// probabilities: 8 elements a thread, then halves across the threads of a head. grid: x groups of
/// kOwn of batch * seq * q_heads.
template <class T, FlashVariant kVariant>
struct FlashDelta {
  using Arguments = AttentionArguments;
  static constexpr int kLanes = FlashSizes<kVariant>::Queries::kChunks;  ///< threads of a head
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerSm = 8;
  static constexpr int kSharedBytes = 0;
  static constexpr int kOwn = kThreads / kLanes;

  template <class Block>
  static HR_FLASH void run(const Block& block, const Arguments& a) {
    using I32 = typename Block::I32;
    const int seq = static_cast<int>(a.seq);
    const int heads = static_cast<int>(a.q_heads);
    const int64_t first = int64_t{block.index()} * kOwn;
    const int64_t row = first / a.q_heads;
    const int64_t left = a.batch * a.seq - row;
    const int rows = static_cast<int>(left < kOwn ? left : kOwn);
    const I32 within = block.thread() / kLanes + static_cast<int>(first % a.q_heads);
    const I32 head = within % heads;
    const I32 down = within / heads;  // rows from `row` on
    const I32 column = block.thread() % kLanes * 8;
    const I32 offset =
        down * static_cast<int>(a.out_stride) + head * static_cast<int>(a.head_dim) + column;
    const auto there = down < rows;
    const int64_t skipped = row * a.out_stride;
    typename Block::U32 out[4];
    typename Block::U32 dout[4];
    load(block, a, static_cast<const T*>(a.out) + skipped, offset, column, there, out);
    load(block, a, static_cast<const T*>(a.dout) + skipped, offset, column, there, dout);
    typename Block::F32 sum = 0.0F;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      sum = block.fma(block.template widen<T>(out[e / 2] >> (e % 2 * 16)),
                      block.template widen<T>(dout[e / 2] >> (e % 2 * 16)), sum);
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      sum = sum + block.shuffle_xor(sum, lanes);
    }
    const int position = static_cast<int>(row % a.seq);
    const I32 sequence = (down + position) / seq;  // from that of `row` on
    block.store_f32(a.delta + row / a.seq * a.q_heads * a.seq,
                    (sequence * heads + head) * seq + (down + position) % seq, sum,
                    there & (column == 0));
  }

 private:
  template <class Block>
  static HR_FLASH void load(const Block& block, const Arguments& a, const T* base,
                            typename Block::I32 offset, typename Block::I32 column,
                            typename Block::Mask there, typename Block::U32 (&words)[4]) {
    const int head_dim = static_cast<int>(a.head_dim);
    if (a.is_aligned) {
      block.load_16(base, offset, there & (column < head_dim), words);
      return;
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int e = 2 * word;
      const auto low = block.load_half(base, offset + e, there & (column + e < head_dim));
      const auto high =
          block.load_half(base, offset + (e + 1), there & (column + (e + 1) < head_dim));
      words[word] = low | (high << 16);
    }
  }
};

}  // namespace headrace::device::cuda
