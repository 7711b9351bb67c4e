#include "proto/nearest.h"

#include <gtest/gtest.h>

namespace headrace::proto {
namespace {

TEST(EditDistance, CountsSingleEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("stage", ""), 5);
  EXPECT_EQ(edit_distance("", "stage"), 5);
  EXPECT_EQ(edit_distance("clippng", "clipping"), 1);
  EXPECT_EQ(edit_distance("optimisation", "optimization"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("NVMe", "nvme"), 0) << "case does not count";
}

TEST(EditDistance, SwapOfNeighboursIsOneEdit) {
  EXPECT_EQ(edit_distance("stgae", "stage"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3) << "no edit inside a swapped pair";
}

TEST(EditDistance, IsSymmetric) {
  const std::vector<std::string> words = {"", "a", "lr", "betas", "block_size", "queue_depth"};
  for (const std::string& a : words) {
    for (const std::string& b : words) {
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a)) << a << " " << b;
    }
  }
}

TEST(Nearest, FindsMisspellingsOnly) {
  const std::vector<std::string> names = {"queue_depth", "block_size", "single_submit"};
  EXPECT_EQ(nearest("queue_deph", names), "queue_depth");
  EXPECT_EQ(nearest("blocksize", names), "block_size");
  EXPECT_EQ(nearest("learning_rate", names), std::nullopt);
  EXPECT_EQ(nearest("x", names), std::nullopt);
  EXPECT_EQ(nearest("queue", names), "queue_depth") << "cut short";
  EXPECT_EQ(nearest("Over", {"overlap_events_later", "overlap_events"}), "overlap_events");
  EXPECT_EQ(nearest("ove", {"overlap_events"}), std::nullopt);
  EXPECT_EQ(nearest(std::string(100'000, 'q'), names), std::nullopt);
}

}  // namespace
}  // namespace headrace::proto
