#include "engine/state_format.h"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

/// By hand, array by array: read and written, but for the gradient (read) and the 16-bit weight
/// beside a master (written).
TEST(StateFormat, TheTrafficOfAnUpdateIsThatOfItsArrays) {
  const StateFormat fp32{.master = MasterPlace::weight};
  EXPECT_EQ(fp32.update_traffic(DType::f32).count(), 8 + 8 + 8 + 4);
  const StateFormat beside{.master = MasterPlace::state};
  EXPECT_EQ(beside.update_traffic(DType::f32).count(), 8 + 2 + 8 + 8 + 4);
  const StateFormat split{.master = MasterPlace::split};
  EXPECT_EQ(split.update_traffic(DType::bf16).count(), 4 + 4 + 8 + 8 + 2);
  const StateFormat bf16{.master = MasterPlace::split, .moment_dtype = DType::bf16};
  EXPECT_EQ(bf16.update_traffic(DType::bf16).count(), 4 + 4 + 4 + 4 + 2);
  const StateFormat codes{.master = MasterPlace::split, .moment_dtype = DType::u8};
  EXPECT_EQ(codes.update_traffic(DType::bf16).count(), 4 + 4 + 2 + 2 + 2);
  const StateFormat lion{.master = MasterPlace::split, .moments = 1};
  EXPECT_EQ(lion.update_traffic(DType::bf16).count(), 4 + 4 + 8 + 2);
  const StateFormat sgd{.master = MasterPlace::split, .moments = 0};
  EXPECT_EQ(sgd.update_traffic(DType::bf16).count(), 4 + 4 + 2);
}

}  // namespace
}  // namespace headrace::engine
