#include "base/for_each_parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace headrace {
namespace {

TEST(ForEachParallel, CallsEachOnce) {
  for (const size_t count : {0U, 1U, 2U, 1000U}) {
    std::vector<int> calls(count);
    for_each_parallel(count, [&](size_t i) { ++calls[i]; });
    EXPECT_EQ(calls, std::vector<int>(count, 1));
  }
}

TEST(ForEachParallel, ThrowsWhatACallThrows) {
  for (const size_t bad : {0U, 7U, 99U}) {
    EXPECT_THROW(for_each_parallel(100,
                                   [&](size_t i) {
                                     if (i == bad) {
                                       throw std::runtime_error("bad");
                                     }
                                   }),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace headrace
