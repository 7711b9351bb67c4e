#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace headrace::device::cpu {

/// Where a piece of a matrix lies in memory: rows of `columns` elements, `stride` elements apart.
struct StridedRows {
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};

/// tile[r][c] = source[r][c] * scale in fp32, for f32, bf16, f16 and u8, which are codes in e4m3;
/// the rest of the dense [tile_rows, tile_columns] tile is zero.
void load_tile(const void* source, const StridedRows& layout, float scale, float* tile,
               int64_t tile_rows, int64_t tile_columns);

/// The same for 16-bit elements copied as they are.
void load_tile_16bit(const void* source, const StridedRows& layout, uint16_t* tile,
                     int64_t tile_rows, int64_t tile_columns);

/// target[r][c] = tile[r][c] * scale + (accumulate ? target[r][c] : 0), computed in fp32 and
/// rounded once, to nearest even. The tile is dense with `tile_columns` columns.
void store_tile(const float* tile, int64_t tile_columns, float scale, bool accumulate, void* target,
                const StridedRows& layout);

}  // namespace headrace::device::cpu
