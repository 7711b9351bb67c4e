#pragma once

#include <cstdint>

#include "device/cuda/launch.h"
#include "device/kernels/convert.inl.h"

/// Marks a function of tensor-core attention. Its registers are arrays, which must not outlive
/// inlining on the GPU; on the CPU, where a register is that of all threads, one function of them
/// all would take minutes to compile.
#if defined(__CUDACC__)
#define HR_FLASH __device__ __forceinline__
#else
#define HR_FLASH inline
#endif

/// Tensor-core attention: how its kernels cut their work, and where things lie in shared memory.
namespace headrace::device::cuda {

/// A block keeps `kOwn` rows of one operand pair and lets the rows of the other pair pass by,
/// kStreamed at a time. Every warp has 16 * kRowTiles of the block's own rows. A row in shared
/// memory is a whole head of kHeadDim elements of 2 bytes; shorter heads are filled up with zeros.
template <int kHeadDimension, int kWarpCount, int kRowTileCount, int kStreamedRows, bool kHold>
struct FlashTiles {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kWarps = kWarpCount;
  static constexpr int kRowTiles = kRowTileCount;
  static constexpr int kStreamed = kStreamedRows;
  static constexpr bool kHoldOwn = kHold;  ///< own fragments stay in registers (backward)
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = kThreads == 128 ? 2 : 1;  ///< that the registers are for
  static constexpr int kOwn = 16 * kRowTiles * kWarps;
  static constexpr int kRowBytes = 2 * kHeadDim;
  static constexpr int kChunks = kHeadDim / 8;  ///< of 16 bytes, in a row
  static constexpr int kOwnBytes = kOwn * kRowBytes;
  static constexpr int kStreamedBytes = kStreamed * kRowBytes;
  static constexpr int kDimSteps = kHeadDim / 16;
  static constexpr int kRowSteps = kStreamed / 16;
};

/// Sizes by head and by the shared memory that a block may have: 99 KiB (sm_86, sm_89, sm_120) or
/// from 163 KiB on (sm_80, sm_90, sm_100).
template <FlashVariant>
struct FlashSizes;
template <>
struct FlashSizes<FlashVariant::dim64> {
  using Forward = FlashTiles<64, 4, 2, 64, false>;
  using Keys = FlashTiles<64, 4, 2, 32, false>;
  using Queries = FlashTiles<64, 4, 2, 48, false>;
};
template <>
struct FlashSizes<FlashVariant::dim128> {
  using Forward = FlashTiles<128, 4, 2, 48, false>;
  using Keys = FlashTiles<128, 8, 1, 64, false>;
  using Queries = FlashTiles<128, 8, 1, 64, true>;
};
template <>
struct FlashSizes<FlashVariant::dim128_small> {
  using Forward = FlashTiles<128, 8, 1, 64, false>;
  using Keys = FlashTiles<128, 8, 1, 32, false>;
  using Queries = FlashTiles<128, 8, 1, 32, true>;
};

/// Byte offset of 16-byte chunk `chunk` of row `row` in a tile. The chunks of 8 rows that follow
/// each other are permuted by an exclusive or, so that both the copies (along a row) and the
/// matrix loads (8 rows of one chunk) touch every bank once.
template <class Tiles, class Index>
HR_FLASH Index flash_offset(Index row, Index chunk) {
  return row * Tiles::kRowBytes + ((chunk ^ (row & 7)) << 4);
}

/// Of `rows` rows from `first` on, those that the sequence has.
HR_FLASH int flash_rows_there(int seq, int first, int rows) {
  return seq - first < rows ? seq - first : rows;
}

}  // namespace headrace::device::cuda
