#include "device/cpu/matmul.h"

#include <algorithm>
#include <array>

#include "device/cpu/parallel_tasks.h"
#include "device/cpu/scratch.h"
#include "device/cpu/tile_convert.h"

namespace headrace::device::cpu {

namespace {

// Panels of these sizes stay in a 2 MiB second-level cache: best of tiles of 128 to 512 and depths
// of 384 to 1536 on an AVX-512 core (bench/kernel_bench). Smaller tiles only where there would be
// too few of them to share out.
constexpr int64_t kTileMax = 256;
constexpr int64_t kTileMin = 64;
constexpr int64_t kTilesWanted = 6;
constexpr int64_t kDepthMax = 512;
// Tiles at the edge are padded with zeros to multiples of these: fewer shapes to generate code for,
// and whole vectors everywhere.
constexpr int64_t kRowUnit = 8;
constexpr int64_t kColumnUnit = 16;

/// One dimension of c cut into equal parts with a smaller last one, or of the inner dimension.
struct Cut {
  int64_t size = 0;
  int64_t part = 0;   ///< elements per part
  int64_t parts = 0;  ///< number of parts
  int64_t unit = 1;   ///< padding

  Cut(int64_t size_in, int64_t part_max, int64_t unit_in) : size(size_in), unit(unit_in) {
    part = align_up(ceil_div(size, ceil_div(size, part_max)), unit);
    parts = ceil_div(size, part);
  }
  int64_t begin(int64_t index) const { return index * part; }
  int64_t length(int64_t index) const { return std::min(part, size - begin(index)); }
  int64_t padded(int64_t index) const { return align_up(length(index), unit); }
  bool is_edge(int64_t index) const { return padded(index) != part; }
};

/// How one product is carried out.
struct Plan {
  Cut rows;
  Cut columns;
  Cut depth;
  DType tile_dtype;
  bool transpose_a;
  bool transpose_b;
  int64_t slots;

  int64_t tiles() const { return rows.parts * columns.parts; }
  int64_t element_bytes() const { return size_of(tile_dtype).count(); }
  Bytes a_bytes() const {
    return scratch_bytes<std::byte>(rows.part * depth.part * element_bytes());
  }
  Bytes b_bytes() const {
    return scratch_bytes<std::byte>(columns.part * depth.part * element_bytes());
  }
  Bytes c_bytes() const { return scratch_bytes<float>(rows.part * columns.part); }
};

Plan make_plan(const Matrix& a, bool transpose_a, bool transpose_b, const Matrix& c,
               bool use_bf16_instructions) {
  int64_t row_part = kTileMax;
  int64_t column_part = kTileMax;
  const auto tiles = [&] { return ceil_div(c.rows, row_part) * ceil_div(c.columns, column_part); };
  while (tiles() < kTilesWanted && std::max(row_part, column_part) > kTileMin) {
    // Halve the side that is longer for what there is of it.
    int64_t& longer =
        std::min(row_part, c.rows) > std::min(column_part, c.columns) ? row_part : column_part;
    int64_t& other = &longer == &row_part ? column_part : row_part;
    (longer > kTileMin ? longer : other) /= 2;
  }
  const bool native = a.dtype == DType::bf16 && use_bf16_instructions;
  Plan plan{Cut(c.rows, row_part, kRowUnit),
            Cut(c.columns, column_part, kColumnUnit),
            Cut(transpose_a ? a.rows : a.columns, kDepthMax, kColumnUnit),
            native ? DType::bf16 : DType::f32,
            transpose_a,
            transpose_b,
            1};
  plan.slots = std::min(plan.tiles(), core_count());
  return plan;
}

/// The code for every kind of tile of a plan: [edge row][edge column][edge depth][accumulate].
class PlanProducts {
 public:
  PlanProducts(TileProductCache& cache, const Plan& plan) {
    const auto kinds = [](const Cut& cut) -> size_t { return cut.is_edge(cut.parts - 1) ? 2 : 1; };
    for (size_t r = 0; r < kinds(plan.rows); ++r) {
      for (size_t c = 0; c < kinds(plan.columns); ++c) {
        for (size_t d = 0; d < kinds(plan.depth); ++d) {
          add(cache, plan, r, c, d);
        }
      }
    }
  }

  const TileProduct& get(bool edge_row, bool edge_column, bool edge_depth, bool accumulate) const {
    return *products_[index(edge_row, edge_column, edge_depth, accumulate)];
  }
  Bytes scratchpad_size() const { return scratchpad_; }

 private:
  static size_t index(size_t row, size_t column, size_t depth, size_t accumulate) {
    return ((row * 2 + column) * 2 + depth) * 2 + accumulate;
  }

  void add(TileProductCache& cache, const Plan& plan, size_t row, size_t column, size_t depth) {
    const auto extent = [](const Cut& cut, size_t edge) {
      return edge != 0 ? cut.padded(cut.parts - 1) : cut.part;
    };
    TileShape shape;
    shape.rows = extent(plan.rows, row);
    shape.columns = extent(plan.columns, column);
    shape.depth = extent(plan.depth, depth);
    shape.dtype = plan.tile_dtype;
    shape.transpose_a = plan.transpose_a;
    shape.transpose_b = plan.transpose_b;
    for (const size_t accumulate : {0, 1}) {
      // The first chunk starts the sum, the later ones add to it.
      if (accumulate == 1 ? plan.depth.parts == 1 : depth == 1) {
        continue;
      }
      shape.accumulate = accumulate == 1;
      auto product = cache.get(shape);
      scratchpad_ = std::max(scratchpad_, product->scratchpad_size());
      products_[index(row, column, depth, accumulate)] = std::move(product);
    }
  }

  std::array<std::shared_ptr<const TileProduct>, 16> products_;
  Bytes scratchpad_;
};

Bytes slot_bytes(const Plan& plan, const PlanProducts& products) {
  return plan.a_bytes() + plan.b_bytes() + plan.c_bytes() +
         scratch_bytes<std::byte>(products.scratchpad_size().count());
}

/// Packs op(matrix)[outer, inner] of a panel: `outer` counts rows of c for a, columns of c for b.
/// The tile keeps the order of the matrix in memory.
void pack(const Matrix& matrix, bool outer_is_row, const Cut& outer, int64_t outer_index,
          const Cut& inner, int64_t inner_index, DType tile_dtype, std::byte* tile) {
  const Cut& row_cut = outer_is_row ? outer : inner;
  const Cut& column_cut = outer_is_row ? inner : outer;
  const int64_t row_index = outer_is_row ? outer_index : inner_index;
  const int64_t column_index = outer_is_row ? inner_index : outer_index;
  const StridedRows layout{matrix.dtype, row_cut.length(row_index), column_cut.length(column_index),
                           matrix.stride};
  const int64_t first = row_cut.begin(row_index) * matrix.stride + column_cut.begin(column_index);
  const std::byte* const source =
      static_cast<const std::byte*>(matrix.data) + first * size_of(matrix.dtype).count();
  if (tile_dtype == DType::bf16) {
    load_tile_16bit(source, layout, reinterpret_cast<uint16_t*>(tile), row_cut.padded(row_index),
                    column_cut.padded(column_index));
  } else {
    load_tile(source, layout, 1.0F, reinterpret_cast<float*>(tile), row_cut.padded(row_index),
              column_cut.padded(column_index));
  }
}

/// c = accumulate ? c : 0, for an empty inner dimension.
void clear(const Matrix& c, bool accumulate) {
  if (accumulate) {
    return;
  }
  const int64_t element_bytes = size_of(c.dtype).count();
  for (int64_t r = 0; r < c.rows; ++r) {
    std::byte* const row = static_cast<std::byte*>(c.data) + r * c.stride * element_bytes;
    std::fill_n(row, c.columns * element_bytes, std::byte{0});
  }
}

bool is_empty(const Matrix& a, const Matrix& c) {
  return c.rows == 0 || c.columns == 0 || a.rows == 0 || a.columns == 0;
}

}  // namespace

Bytes CpuMatmul::scratch(const Matrix& a, bool transpose_a, const Matrix&, bool transpose_b,
                         const Matrix& c) const {
  if (is_empty(a, c)) {
    return Bytes(0);
  }
  const Plan plan = make_plan(a, transpose_a, transpose_b, c, use_bf16_instructions_);
  return slot_bytes(plan, PlanProducts(products_, plan)) * plan.slots;
}

void CpuMatmul::run(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                    const Matrix& c, bool accumulate, Workspace scratch, float scale) const {
  if (is_empty(a, c)) {
    return clear(c, accumulate);
  }
  const Plan plan = make_plan(a, transpose_a, transpose_b, c, use_bf16_instructions_);
  const PlanProducts products(products_, plan);
  const Bytes per_slot = slot_bytes(plan, products);
  check_scratch(scratch, per_slot * plan.slots);
  parallel_tasks(plan.tiles(), plan.slots, [&](int64_t tile, int64_t slot) {
    const int64_t row = tile / plan.columns.parts;
    const int64_t column = tile % plan.columns.parts;
    ScratchCarver carver({scratch.data + slot * per_slot.count(), per_slot});
    auto* const a_panel = carver.take<std::byte>(plan.a_bytes().count());
    auto* const b_panel = carver.take<std::byte>(plan.b_bytes().count());
    auto* const c_tile = carver.take<float>(plan.rows.part * plan.columns.part);
    auto* const scratchpad = carver.take<std::byte>(products.scratchpad_size().count());
    for (int64_t chunk = 0; chunk < plan.depth.parts; ++chunk) {
      pack(a, !transpose_a, plan.rows, row, plan.depth, chunk, plan.tile_dtype, a_panel);
      pack(b, transpose_b, plan.columns, column, plan.depth, chunk, plan.tile_dtype, b_panel);
      products
          .get(plan.rows.is_edge(row), plan.columns.is_edge(column), plan.depth.is_edge(chunk),
               chunk > 0)
          .run(a_panel, b_panel, c_tile, scratchpad);
    }
    const StridedRows layout{c.dtype, plan.rows.length(row), plan.columns.length(column), c.stride};
    const int64_t first = plan.rows.begin(row) * c.stride + plan.columns.begin(column);
    store_tile(c_tile, plan.columns.padded(column), scale, accumulate,
               static_cast<std::byte*>(c.data) + first * size_of(c.dtype).count(), layout);
  });
}

}  // namespace headrace::device::cpu
