#include "device/cpu/tile_product.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/error.h"

namespace headrace::device::cpu {
namespace {

TileShape shape_of(int64_t rows) {
  TileShape shape;
  shape.rows = rows;
  shape.columns = 16;
  shape.depth = 16;
  return shape;
}

TEST(TileProductCache, MakesAShapeOnce) {
  TileProductCache cache;
  const auto first = cache.get(shape_of(8));
  EXPECT_EQ(cache.get(shape_of(8)), first);
  TileShape other = shape_of(8);
  other.accumulate = true;
  EXPECT_NE(cache.get(other), first);
}

TEST(TileProductCache, ForgetsTheOldestButLeavesItToItsUsers) {
  TileProductCache cache;
  const auto first = cache.get(shape_of(8));
  // One more than it keeps.
  for (int64_t i = 2; i <= 1025; ++i) {
    cache.get(shape_of(8 * i));
  }
  EXPECT_NE(cache.get(shape_of(8)), first);
  EXPECT_GE(first->scratchpad_size(), Bytes(0));
}

TEST(TileProductCache, ThreadsShareOneProduct) {
  TileProductCache cache;
  constexpr size_t kThreads = 4;
  std::vector<std::shared_ptr<const TileProduct>> seen(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&cache, &seen, t] {
      for (int64_t i = 1; i <= 8; ++i) {
        seen[t] = cache.get(shape_of(8 * i));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& product : seen) {
    EXPECT_EQ(product, cache.get(shape_of(64)));
  }
}

TEST(TileProductCache, RefusesDtypesItHasNoCodeFor) {
  TileProductCache cache;
  TileShape shape = shape_of(8);
  shape.dtype = DType::f16;
  EXPECT_THROW(cache.get(shape), InternalError);
}

}  // namespace
}  // namespace headrace::device::cpu
