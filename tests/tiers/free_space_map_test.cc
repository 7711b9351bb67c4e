#include "tiers/free_space_map.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace headrace::tiers {
namespace {

/// The same by brute force: one flag per byte.
class Bitmap {
 public:
  std::optional<int64_t> best_fit(int64_t length) const {
    std::optional<int64_t> best;
    int64_t best_length = 0;
    for (const auto& [offset, gap] : gaps()) {
      if (gap >= length && (!best || gap < best_length)) {
        best = offset;
        best_length = gap;
      }
    }
    return best;
  }
  void set(int64_t offset, int64_t length, bool is_free) {
    if (static_cast<int64_t>(free_.size()) < offset + length) {
      free_.resize(static_cast<size_t>(offset + length));
    }
    std::fill_n(free_.begin() + offset, length, is_free);
  }
  int64_t free_bytes() const { return std::count(free_.begin(), free_.end(), true); }
  int64_t gap_before(int64_t end) const {
    int64_t length = 0;
    while (length < end && free_[static_cast<size_t>(end - length - 1)]) {
      ++length;
    }
    return length;
  }
  int64_t size() const { return static_cast<int64_t>(free_.size()); }

 private:
  std::vector<std::pair<int64_t, int64_t>> gaps() const {
    std::vector<std::pair<int64_t, int64_t>> gaps;
    for (size_t i = 0; i < free_.size(); ++i) {
      if (!free_[i]) {
        continue;
      }
      const size_t begin = i;
      while (i < free_.size() && free_[i]) {
        ++i;
      }
      gaps.emplace_back(begin, i - begin);
    }
    return gaps;
  }
  std::vector<bool> free_;
};

TEST(FreeSpaceMap, AgreesWithABitmap) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed, 1);
    FreeSpaceMap map;
    Bitmap bitmap;
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (int step = 0; step < 500; ++step) {
      const auto choice = random.below(10);
      const int64_t length = 1 + static_cast<int64_t>(random.below(20));
      if (choice == 0) {
        const int64_t end = bitmap.size();
        map.give_back(end, Bytes(length));
        bitmap.set(end, length, true);
      } else if (choice < 6) {
        const auto offset = map.take(Bytes(length));
        ASSERT_EQ(offset, bitmap.best_fit(length)) << "seed " << seed << " step " << step;
        if (offset) {
          bitmap.set(*offset, length, false);
          taken.emplace_back(*offset, length);
        }
      } else if (!taken.empty()) {
        const auto i = random.below(taken.size());
        const auto [offset, size] = taken[i];
        map.give_back(offset, Bytes(size));
        bitmap.set(offset, size, true);
        taken.erase(taken.begin() + static_cast<int64_t>(i));
      }
      ASSERT_EQ(map.free_bytes(), Bytes(bitmap.free_bytes()));
      ASSERT_EQ(map.gap_before(bitmap.size()), Bytes(bitmap.gap_before(bitmap.size())));
    }
  }
}

TEST(FreeSpaceMap, RefusesWhatIsFreeAlready) {
  FreeSpaceMap map;
  map.give_back(100, Bytes(50));
  for (const auto& [offset, length] : std::vector<std::pair<int64_t, int64_t>>{
           {100, 50}, {90, 11}, {149, 5}, {120, 5}, {0, 1000}}) {
    EXPECT_THROW(map.give_back(offset, Bytes(length)), InternalError);
  }
  EXPECT_EQ(map.free_bytes(), Bytes(50));
}

TEST(FreeSpaceMap, RefusesEmptyRanges) {
  FreeSpaceMap map;
  EXPECT_THROW(map.take(Bytes(0)), InternalError);
  EXPECT_THROW(map.give_back(0, Bytes(0)), InternalError);
  EXPECT_THROW(map.give_back(-1, Bytes(5)), InternalError);
}

}  // namespace
}  // namespace headrace::tiers
