// Which instruction set the kernels run: without this the other tests would pass with any other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/optimizer/kernel_targets.h"
#include "tests/support/instruction_sets.h"

// The order of these includes matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/neon/dispatch_test.cc"
#include "hwy/foreach_target.h"  // re-includes this file for every instruction set but the last
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

int64_t target_here() {
  return HWY_TARGET;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::engine {
namespace {

HWY_EXPORT(target_here);

TEST(NeonDispatch, IsTheChoiceForThisProcessor) {
  EXPECT_EQ(HWY_DYNAMIC_DISPATCH(target_here)(), HWY_NEON);
}

/// Other tests go through these. Where the kernels were not compiled for one, they run another.
TEST(NeonDispatch, IsAmongTheInstructionSetsOfTheTests) {
  const std::vector<int64_t> sets = headrace::testing::instruction_sets();
  EXPECT_NE(std::find(sets.begin(), sets.end(), HWY_NEON), sets.end());
  for (const int64_t set : sets) {
    const headrace::testing::ForcedInstructionSet forced(set);
    const int64_t runs = HWY_DYNAMIC_DISPATCH(target_here)();
    fmt::print("[ TARGET   ] tests of {} run {}\n", hwy::TargetName(set), hwy::TargetName(runs));
    EXPECT_EQ(runs, HWY_NEON);
  }
}

}  // namespace
}  // namespace headrace::engine
#endif  // HWY_ONCE
