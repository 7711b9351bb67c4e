#pragma once

#include "device/cuda/kernels/tile.inl.h"

namespace headrace::device::cuda {

/// The plain product, for what cuBLASLt has no algorithm for: correct for every shape, stride and
/// address, slow.
template <class T, class Target>
struct Matmul {
  using Arguments = MatmulArguments;

  static constexpr int kTile = Arguments::kTile;
  static constexpr int kDepth = Arguments::kDepth;
  static constexpr int kALength = kDepth + 1;
  static constexpr int kBLength = kTile + 1;
  static constexpr int kCLength = kTile + 1;
  static constexpr int kSharedFloats = kTile * kALength + kDepth * kBLength + kTile * kCLength;

  template <class Block>
  static HR_KERNEL void run(const Block& block, const Arguments& arguments) {
    const int64_t first_row = block.index_y() * kTile;
    const int64_t first_column = block.index_x() * kTile;
    const int rows = static_cast<int>(smaller(kTile, arguments.rows - first_row));
    const int columns = static_cast<int>(smaller(kTile, arguments.columns - first_column));
    float* const a_tile = block.template shared<float>();
    float* const b_tile = a_tile + kTile * kALength;
    float* const c_tile = b_tile + kDepth * kBLength;
    const auto* const a = static_cast<const T*>(arguments.a) + first_row * arguments.a_row;
    const auto* const b = static_cast<const T*>(arguments.b) + first_column * arguments.b_column;
    fill_tile(block, c_tile, kTile * kCLength, 0.0F);
    for (int64_t k = 0; k < arguments.depth; k += kDepth) {
      const int depth = static_cast<int>(smaller(kDepth, arguments.depth - k));
      load_tile(block, Strided<T>{a + k * arguments.a_inner, arguments.a_row, arguments.a_inner},
                rows, depth, 1.0F, a_tile, kTile, kDepth, kALength);
      load_tile(block, Strided<T>{b + k * arguments.b_inner, arguments.b_inner, arguments.b_column},
                depth, columns, 1.0F, b_tile, kDepth, kTile, kBLength);
      block.sync();
      multiply_tiles<4>(block, kTile, kTile, kDepth, {a_tile, kALength, 1}, {b_tile, kBLength, 1},
                        [=](int r, int c, float sum)
                            HR_KERNEL_LAMBDA { c_tile[r * kCLength + c] += sum; });
      block.sync();
    }
    block.sync();
    auto* const c =
        static_cast<Target*>(arguments.c) + first_row * arguments.c_stride + first_column;
    block.for_each(rows * columns, [=](int64_t index) HR_KERNEL_LAMBDA {
      const int row = static_cast<int>(index) / columns;
      const int column = static_cast<int>(index) % columns;
      Target& element = c[row * arguments.c_stride + column];
      const float before = arguments.accumulate ? kernels::to_f32(element) : 0.0F;
      element = kernels::from_f32<Target>(before + c_tile[row * kCLength + column]);
    });
  }

 private:
  static HR_KERNEL int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
};

}  // namespace headrace::device::cuda
