#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>

#include "base/dtype.h"
#include "base/units.h"

namespace headrace::device::cpu {

/// A product of dense tiles: c = op_a(a) * op_b(b) + (accumulate ? c : 0), where op_a(a) is
/// [rows, depth], op_b(b) is [depth, columns] and c is fp32 [rows, columns].
struct TileShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  DType dtype = DType::f32;  ///< of a and b: f32 or bf16
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  auto operator<=>(const TileShape&) const = default;
};

/// One oneDNN matmul primitive, generated for one thread, so that its order of summation does not
/// depend on how many threads there are. Immutable; any number of threads may run it at once, also
/// inside parallel regions.
class TileProduct {
 public:
  /// Generates code: some 0.1 to 0.5 ms. Throws InternalError if oneDNN refuses.
  TileProduct(const dnnl::engine& engine, const TileShape& shape);

  /// All pointers are 64-byte aligned; scratchpad has scratchpad_size().
  void run(const void* a, const void* b, float* c, std::byte* scratchpad) const;
  Bytes scratchpad_size() const;

 private:
  dnnl::engine engine_;
  dnnl::memory::desc a_;
  dnnl::memory::desc b_;
  dnnl::memory::desc c_;
  dnnl::memory::desc scratchpad_;
  dnnl::matmul primitive_;
};

/// Makes tile products and keeps the most recently made ones. Thread-safe.
class TileProductCache {
 public:
  TileProductCache();
  std::shared_ptr<const TileProduct> get(const TileShape& shape);

 private:
  dnnl::engine engine_;
  std::mutex mutex_;
  std::map<TileShape, std::shared_ptr<const TileProduct>> products_;
  std::deque<TileShape> oldest_first_;
};

/// Whether products of bf16 operands should use the CPU's bf16 instructions: only where they are
/// there and faster than fp32 ones. Otherwise operands are widened to fp32.
bool prefers_bf16_instructions();
/// Whether they can be used at all.
bool has_bf16_instructions();

}  // namespace headrace::device::cpu
