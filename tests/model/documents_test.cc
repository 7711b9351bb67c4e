#include "model/documents.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace headrace::model {
namespace {

constexpr int32_t kEnd = 9;

TEST(Documents, EndWithTheirTokenOrTheSequence) {
  const std::vector<int32_t> ids = {1,    2,    kEnd, 3, 4, 5,  //
                                    kEnd, kEnd, 6,    7, 8, kEnd};
  const DocumentBorders borders = find_documents(ids, 6, kEnd);
  EXPECT_EQ(borders.begins, (std::vector<int32_t>{0, 0, 0, 3, 3, 3, 0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(borders.seen_from, borders.begins);
  EXPECT_EQ(borders.seen_until, (std::vector<int32_t>{3, 3, 3, 6, 6, 6, 1, 2, 6, 6, 6, 6}));
}

TEST(Documents, AWindowBoundsWhatTheirTokensSee) {
  const std::vector<int32_t> ids = {1, 2, kEnd, 3, 4, 5, 6};
  const DocumentBorders borders = find_documents(ids, 7, kEnd, 2);
  EXPECT_EQ(borders.begins, (std::vector<int32_t>{0, 0, 0, 3, 3, 3, 3}));
  EXPECT_EQ(borders.seen_from, (std::vector<int32_t>{0, 0, 1, 3, 3, 4, 5}));
  EXPECT_EQ(borders.seen_until, (std::vector<int32_t>{2, 3, 3, 5, 6, 7, 7}));
}

TEST(Documents, WholeSequencesAreOneEach) {
  const DocumentBorders all = whole_sequences(8, 4, std::nullopt);
  EXPECT_EQ(all.begins, std::vector<int32_t>(8, 0));
  EXPECT_EQ(all.seen_from, std::vector<int32_t>(8, 0));
  EXPECT_EQ(all.seen_until, std::vector<int32_t>(8, 4));
  const DocumentBorders windowed = whole_sequences(8, 4, 3);
  EXPECT_EQ(windowed.seen_from, (std::vector<int32_t>{0, 0, 0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(windowed.seen_until, (std::vector<int32_t>{3, 4, 4, 4, 3, 4, 4, 4}));
}

/// From the definition, position by position.
TEST(Documents, RandomSequences) {
  Random random(5, 0);
  for (const int64_t seq : {1, 2, 7, 64}) {
    std::vector<int32_t> ids(static_cast<size_t>(seq * 5));
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random.below(4)) == 0 ? kEnd : 1;
    }
    const DocumentBorders borders = find_documents(ids, seq, kEnd, 5);
    for (int64_t i = 0; i < seq * 5; ++i) {
      const int64_t sequence = i / seq * seq;
      int64_t begin = i;
      while (begin > sequence && ids[static_cast<size_t>(begin - 1)] != kEnd) {
        --begin;
      }
      int64_t last = i;
      while (last < sequence + seq - 1 && ids[static_cast<size_t>(last)] != kEnd) {
        ++last;
      }
      EXPECT_EQ(borders.begins[static_cast<size_t>(i)], begin - sequence) << i << " of " << seq;
      int64_t first_seen = begin;
      while (i - first_seen >= 5) {
        ++first_seen;
      }
      int64_t last_seeing = last;
      while (last_seeing - i >= 5) {
        --last_seeing;
      }
      EXPECT_EQ(borders.seen_from[static_cast<size_t>(i)], first_seen - sequence) << i;
      EXPECT_EQ(borders.seen_until[static_cast<size_t>(i)], last_seeing + 1 - sequence) << i;
    }
  }
}

TEST(Documents, NeedWholeSequences) {
  EXPECT_THROW(find_documents(std::vector<int32_t>(5), 2, kEnd), InternalError);
  EXPECT_TRUE(find_documents({}, 2, kEnd).begins.empty());
}

}  // namespace
}  // namespace headrace::model
