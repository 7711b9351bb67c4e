#include "tiers/arena.h"

#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/tiers/support.h"

namespace headrace::tiers {
namespace {

using ::testing::HasSubstr;

class ArenaTest : public ::testing::Test {
 protected:
  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
  Arena arena_{Tier::device, memory_.data(), Bytes(100)};
};

TEST_F(ArenaTest, GivesTheBytesAtAnOffset) {
  arena_.reserve(10, Bytes(20), ObjectId{1});
  EXPECT_EQ(arena_.at(10), memory_.data() + 10);
}

TEST_F(ArenaTest, TakesNeighboursAndTheWholeRange) {
  arena_.reserve(0, Bytes(50), ObjectId{1});
  arena_.reserve(50, Bytes(50), ObjectId{2});
  EXPECT_EQ(arena_.used(), Bytes(100));
}

TEST_F(ArenaTest, RefusesOverlaps) {
  arena_.reserve(20, Bytes(20), ObjectId{7});
  for (const auto& taken : std::vector<std::pair<int64_t, int64_t>>{
           {20, 20}, {10, 11}, {39, 1}, {20, 1}, {0, 100}, {25, 5}, {39, 30}}) {
    const std::string text = test::message_of<InternalError>(
        [&] { arena_.reserve(taken.first, Bytes(taken.second), ObjectId{9}); });
    EXPECT_THAT(text, HasSubstr("object 9"));
    EXPECT_THAT(text, HasSubstr("object 7"));
    EXPECT_THAT(text, HasSubstr("device"));
  }
  EXPECT_EQ(arena_.used(), Bytes(20));
}

TEST_F(ArenaTest, RefusesWhatLiesOutside) {
  constexpr int64_t kHuge = INT64_MAX;
  for (const auto& [offset, size] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 10}, {91, 10}, {100, 1}, {0, 101}, {kHuge, 1}, {1, kHuge}, {0, 0}, {5, -1}}) {
    EXPECT_THROW(arena_.reserve(offset, Bytes(size), ObjectId{9}), InternalError)
        << offset << " " << size;
  }
  EXPECT_EQ(arena_.used(), Bytes(0));
}

TEST_F(ArenaTest, KeepsTheHighWaterMark) {
  arena_.reserve(0, Bytes(30), ObjectId{1});
  arena_.reserve(50, Bytes(30), ObjectId{2});
  arena_.release(0);
  arena_.reserve(30, Bytes(5), ObjectId{3});
  EXPECT_EQ(arena_.used(), Bytes(35));
  EXPECT_EQ(arena_.high_water(), Bytes(60));
}

TEST_F(ArenaTest, RefusesToReleaseWhereNoSlotBegins) {
  arena_.reserve(0, Bytes(30), ObjectId{1});
  EXPECT_THROW(arena_.release(5), InternalError);
  arena_.release(0);
  EXPECT_THROW(arena_.release(0), InternalError);
}

TEST_F(ArenaTest, TakesReservationsFromSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1000; ++i) {
        arena_.reserve(t * 25, Bytes(25), ObjectId{static_cast<uint32_t>(t)});
        arena_.release(t * 25);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(arena_.used(), Bytes(0));
  EXPECT_LE(arena_.high_water(), Bytes(100));
}

}  // namespace
}  // namespace headrace::tiers
