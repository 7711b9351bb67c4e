#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/random.h"
#include "scheduler/byte_pool.h"
#include "scheduler/slots.h"

namespace headrace::scheduler::test {
namespace {

std::optional<int64_t> begin_of(const std::optional<Room>& room) {
  return room ? std::optional(room->begin) : std::nullopt;
}

TEST(Slots, CheapestWindowWithoutPinnedSegments) {
  SlotMap slots(100);
  for (int i = 0; i < 10; ++i) {
    slots.occupy(i * 10, 10, i);
    VictimScore score;
    score.keep_base = i == 3 || i == 4 ? 1 : 5;
    slots.set_score(i * 10, score);
  }
  EXPECT_EQ(begin_of(slots.find_room({20, 0, 0, {}})), 30);
  slots.pin(40);
  EXPECT_EQ(begin_of(slots.find_room({60, 0, 0, {}})), std::nullopt);
  EXPECT_EQ(begin_of(slots.find_room({10, 0, 0, {}})), 30);
  slots.release(90, 0);
  EXPECT_EQ(begin_of(slots.find_room({4, 0, 0, {}})), 96);
  EXPECT_EQ(slots.room_at(75, 20)->victims, (std::vector<int32_t>{7, 8}));
  EXPECT_FALSE(slots.room_at(35, 10));
}

TEST(Slots, AStallOutweighsAFartherUse) {
  SlotMap slots(20);
  slots.occupy(0, 10, 0);
  slots.occupy(10, 10, 1);
  slots.set_score(0, {0.2, 0, 1, 0});   // idle early, used again sooner
  slots.set_score(10, {0.1, 0, 4, 0});  // idle at 4 only
  const StallModel busy_lane{4, 1, 2};
  EXPECT_EQ(begin_of(slots.find_room({10, 0, 0, busy_lane})), 10);
  const StallModel idle_lane{0, 1, 2};  // could have started at 1 and arrived in time
  EXPECT_EQ(begin_of(slots.find_room({10, 0, 0, idle_lane})), 0);
}

/// The slots of an arena side by side in order of their addresses, for trying every room that ends
/// where one of them does.
struct Row {
  struct Part {
    int64_t begin = 0;
    int64_t end = 0;
    bool is_free = false;
    bool pinned = false;
    VictimScore score;
  };
  std::vector<Part> parts;

  double cost(const WindowQuery& query, int64_t begin, int64_t end) const {
    double keep = 0;
    double ready = 0;
    for (const Part& part : parts) {
      if (part.begin >= end || part.end <= begin) {
        continue;
      }
      if (part.pinned) {
        return std::numeric_limits<double>::infinity();
      }
      keep += part.score.keep(query.now);
      if (!part.is_free || !query.free_is_ready) {
        ready = std::max(ready, part.score.ready(query.flush_lane_free));
      }
    }
    return keep + query.stall.stall(ready);
  }

  /// Of the cheapest room, the highest among equals.
  std::optional<int64_t> begin_of_best(const WindowQuery& query) const {
    double best = std::numeric_limits<double>::infinity();
    std::optional<int64_t> begin;
    for (const Part& part : parts) {
      const int64_t from = part.end - query.size;
      const double price = from < 0 ? best : cost(query, from, part.end);
      if (from >= 0 && price <= best && price < std::numeric_limits<double>::infinity()) {
        best = price;
        begin = from;
      }
    }
    return begin;
  }
};

// All times and costs are multiples of a quarter, whose sums are exact.
TEST(Slots, NoOtherRoomIsCheaper) {
  int found = 0;
  int inside = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed, 43);
    const auto quarters = [&](uint64_t bound) {
      return 0.25 * static_cast<double>(random.below(bound));
    };
    const uint64_t count = 1 + random.below(200);
    const uint64_t pinned_of_64 = random.below(8);
    Row row;
    for (uint64_t s = 0; s < count; ++s) {
      const int64_t begin = row.parts.empty() ? 0 : row.parts.back().end;
      row.parts.push_back({begin,
                           begin + 1 + static_cast<int64_t>(random.below(6)),
                           random.below(5) == 0,
                           random.below(64) < pinned_of_64,
                           {quarters(9), -quarters(3), quarters(30), quarters(4)}});
    }
    SlotMap slots(row.parts.back().end);
    for (size_t s = 0; s < row.parts.size(); ++s) {
      const Row::Part& part = row.parts[s];
      slots.occupy(part.begin, part.end - part.begin, static_cast<int32_t>(s));
    }
    for (Row::Part& part : row.parts) {
      if (part.is_free) {
        part.pinned = false;
        part.score = {0, 0, part.score.idle_from, 0};
        slots.release(part.begin, part.score.idle_from);
        continue;
      }
      slots.set_score(part.begin, part.score);
      if (part.pinned) {
        slots.pin(part.begin);
      }
    }
    for (int queries = 0; queries < 5; ++queries) {
      const WindowQuery query{1 + static_cast<int64_t>(random.below(20)),
                              quarters(12),
                              quarters(20),
                              {quarters(12), quarters(4), quarters(16), quarters(2)},
                              random.below(4) == 0};
      const auto room = slots.find_room(query);
      const auto expected = row.begin_of_best(query);
      ASSERT_EQ(begin_of(room), expected) << seed;
      found += room ? 1 : 0;
      inside += room && room->victims.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(found, 4000);
  EXPECT_GT(inside, 1000);
}

/// Slots and free bytes of a pool, for trying everything.
struct PoolModel {
  struct Part {
    int64_t size = 0;
    double keep = 0;
    double ready = 0;
    bool pinned = false;
  };
  std::vector<Part> slots;
  std::vector<Part> free;

  /// Least stall plus keep costs over all sets of victims; infinite where none is enough. Free
  /// bytes are taken in order of time.
  double least_cost(int64_t size, const StallModel& stall) const {
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t set = 0; set < 1U << slots.size(); ++set) {
      double keep = 0;
      double ready = 0;
      int64_t have = 0;
      bool allowed = true;
      for (size_t s = 0; s < slots.size(); ++s) {
        if ((set >> s & 1U) != 0) {
          keep += slots[s].keep;
          ready = std::max(ready, slots[s].ready);
          have += slots[s].size;
          allowed = allowed && !slots[s].pinned;
        }
      }
      for (size_t f = 0; f < free.size() && have < size; ++f) {
        have += free[f].size;
        ready = std::max(ready, free[f].ready);
      }
      if (allowed && have >= size) {
        best = std::min(best, keep + stall.stall(ready));
      }
    }
    return best;
  }
};

// With slots of one size the cheapest by bytes are the cheapest: no set of victims costs less.
TEST(BytePool, NoOtherVictimsAreCheaper) {
  int found = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed, 41);
    const uint64_t count = 1 + random.below(7);
    const auto spare = static_cast<int64_t>(random.below(3));
    BytePool pool(static_cast<int64_t>(count) * 4 + spare);
    PoolModel model;
    for (uint64_t s = 0; s < count; ++s) {
      const auto begin = static_cast<int64_t>(s) * 4;
      pool.occupy(begin, 4, static_cast<int32_t>(s));
      VictimScore score;
      score.keep_base = static_cast<double>(random.below(5));
      score.idle_from = static_cast<double>(random.below(6));
      pool.set_score(begin, score);
      model.slots.push_back({4, score.keep_base, score.idle_from, random.below(4) == 0});
      if (model.slots.back().pinned) {
        pool.pin(begin);
      }
    }
    if (spare > 0) {
      model.free.push_back({spare, 0, 0, false});
    }
    WindowQuery query;
    query.size = 1 + static_cast<int64_t>(random.below(count * 4));
    query.stall = {static_cast<double>(random.below(4)), 1, static_cast<double>(random.below(6)),
                   0.1 * static_cast<double>(random.below(3))};
    const auto room = pool.find_room(query);
    const double least = model.least_cost(query.size, query.stall);
    ASSERT_EQ(room.has_value(), least < std::numeric_limits<double>::infinity()) << seed;
    if (!room) {
      continue;
    }
    double keep = 0;
    double ready = 0;
    int64_t have = spare;
    for (const int32_t victim : room->victims) {
      const auto& slot = model.slots[static_cast<size_t>(victim)];
      EXPECT_FALSE(slot.pinned) << seed;
      keep += slot.keep;
      ready = std::max(ready, slot.ready);
      have += slot.size;
    }
    EXPECT_GE(have, query.size) << seed;
    EXPECT_NEAR(keep + query.stall.stall(ready), least, 1e-12) << seed;
    found += room->victims.empty() ? 0 : 1;
  }
  EXPECT_GT(found, 1000);
}

TEST(BytePool, TheCheapestByBytesGoFirst) {
  BytePool pool(35);
  pool.occupy(0, 30, 0);
  pool.occupy(30, 5, 1);
  pool.set_score(0, {3, 0, 0, 0});   // a tenth for a byte
  pool.set_score(30, {1, 0, 0, 0});  // a fifth
  EXPECT_EQ(pool.find_room({20, 0, 0, {}})->victims, std::vector<int32_t>{0});
  pool.set_score(30, {0.4, 0, 0, 0});
  EXPECT_EQ(pool.find_room({5, 0, 0, {}})->victims, std::vector<int32_t>{1});
}

TEST(BytePool, BytesAreTakenInTheOrderInWhichTheyComeFree) {
  BytePool pool(30);
  EXPECT_EQ(pool.occupy(0, 10, 0), 0);
  EXPECT_EQ(pool.occupy(10, 20, 1), 0);
  pool.release(0, 5);
  pool.release(10, 3);
  const auto room = pool.find_room({15, 0, 0, {}});
  ASSERT_TRUE(room);
  EXPECT_TRUE(room->victims.empty());
  EXPECT_EQ(pool.occupy(room->begin, 15, 2), 3);
  const auto next = pool.find_room({15, 0, 0, {}});
  ASSERT_TRUE(next);
  EXPECT_NE(next->begin, room->begin);
  EXPECT_EQ(pool.occupy(next->begin, 15, 3), 5);
  pool.pin(room->begin);
  EXPECT_FALSE(pool.find_room({16, 0, 0, {}}));
  EXPECT_EQ(pool.room_at(0, 15)->victims, std::vector<int32_t>{3});
}

}  // namespace
}  // namespace headrace::scheduler::test
