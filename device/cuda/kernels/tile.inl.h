#pragma once

#include "device/cuda/launch.h"
#include "device/kernels/convert.inl.h"

/// Tiles of fp32 in the shared memory of a block, as attention and the plain matrix product use
/// them. Rows have an odd length there, so that neither rows nor columns collide in the banks.
namespace headrace::device::cuda {

/// Element (r, c) of a tile, or of its transpose, is at data[r * row + c * column].
struct TileView {
  const float* data;
  int row;
  int column;
};

/// store(r, c, sum over k of a(r, k) * b(k, c)) for all of [rows, columns]; both are multiples of
/// kMicro. A thread works on kMicro x kMicro elements: kMicro rows that follow each other, columns
/// that lie apart, so that neighbours read neighbouring columns. Sums run in the order of k.
template <int kMicro, class Block, class Store>
HR_KERNEL void multiply_tiles(const Block& block, int rows, int columns, int depth, TileView a,
                              TileView b, const Store& store) {
  const int column_groups = columns / kMicro;
  block.for_each(rows / kMicro * column_groups, [=](int64_t index) HR_KERNEL_LAMBDA {
    const int first_row = static_cast<int>(index) / column_groups * kMicro;
    const int first_column = static_cast<int>(index) % column_groups;
    float sums[kMicro][kMicro] = {};
    const float* a_at = a.data + first_row * a.row;
    const float* b_at = b.data + first_column * b.column;
#pragma unroll
    for (int k = 0; k < depth; ++k) {
      float left[kMicro];
      float right[kMicro];
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
        left[i] = a_at[i * a.row];
        right[i] = b_at[i * column_groups * b.column];
      }
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
#pragma unroll
        for (int j = 0; j < kMicro; ++j) {
          sums[i][j] += left[i] * right[j];
        }
      }
      a_at += a.column;
      b_at += b.row;
    }
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        store(first_row + i, first_column + j * column_groups, sums[i][j]);
      }
    }
  });
}

/// Element (r, c) of a matrix in global memory, or of its transpose, is at data[r * row + c *
/// column].
template <class T>
struct Strided {
  const T* data;
  int64_t row;
  int64_t column;
};

/// tile[r * length + c] = source(r, c) * scale for r < rows_there and c < columns_there, else 0;
/// the tile has `rows` rows and `columns` columns.
template <class Block, class T>
HR_KERNEL void load_tile(const Block& block, Strided<T> source, int rows_there, int columns_there,
                         float scale, float* tile, int rows, int columns, int length) {
  block.for_each(rows * columns, [=](int64_t index) HR_KERNEL_LAMBDA {
    const int r = static_cast<int>(index) / columns;
    const int c = static_cast<int>(index) % columns;
    tile[r * length + c] =
        r < rows_there && c < columns_there
            ? kernels::to_f32(source.data[r * source.row + c * source.column]) * scale
            : 0.0F;
  });
}

/// The same for dense rows.
template <class Block, class T>
HR_KERNEL void load_tile(const Block& block, const T* source, int64_t stride, int rows_there,
                         int columns_there, float scale, float* tile, int rows, int columns,
                         int length) {
  load_tile(block, Strided<T>{source, stride, 1}, rows_there, columns_there, scale, tile, rows,
            columns, length);
}

/// The inverse for the part that is there.
template <class Block, class T>
HR_KERNEL void store_tile(const Block& block, const float* tile, int length, float scale, T* target,
                          int64_t stride, int rows_there, int columns_there) {
  block.for_each(rows_there * columns_there, [=](int64_t index) HR_KERNEL_LAMBDA {
    const int r = static_cast<int>(index) / columns_there;
    const int c = static_cast<int>(index) % columns_there;
    target[r * stride + c] = kernels::from_f32<T>(tile[r * length + c] * scale);
  });
}

template <class Block>
HR_KERNEL void fill_tile(const Block& block, float* tile, int count, float value) {
  block.for_each(count, [=](int64_t i) HR_KERNEL_LAMBDA { tile[i] = value; });
}

}  // namespace headrace::device::cuda
