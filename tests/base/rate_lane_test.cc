#include "base/rate_lane.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Clock = RateLane::Clock;

Clock::time_point at(int64_t milliseconds) {
  return Clock::time_point(std::chrono::milliseconds(milliseconds));
}

TEST(RateLane, ServesOneAfterTheOther) {
  RateLane lane(1e6);  // 1000 bytes per millisecond
  const RateLane::Slot first = lane.admit(at(100), Bytes(5000));
  EXPECT_EQ(first.begin, at(100));
  EXPECT_EQ(first.end, at(105));
  const RateLane::Slot second = lane.admit(at(101), Bytes(2000));
  EXPECT_EQ(second.begin, at(105));
  EXPECT_EQ(second.end, at(107));
  const RateLane::Slot late = lane.admit(at(200), Bytes(1000));
  EXPECT_EQ(late.begin, at(200));
  EXPECT_EQ(late.end, at(201));
  const RateLane::Slot timed = lane.admit_for(at(200), 0.004);
  EXPECT_EQ(timed.begin, at(201));
  EXPECT_EQ(timed.end, at(205));
}

TEST(RateLane, WithoutALimitNothingWaits) {
  RateLane lane;
  EXPECT_FALSE(lane.is_limited());
  for (const int64_t arrival : {5, 3}) {
    const RateLane::Slot slot = lane.admit(at(arrival), Bytes(1 << 30));
    EXPECT_EQ(slot.begin, at(arrival));
    EXPECT_EQ(slot.end, at(arrival));
  }
}

}  // namespace
}  // namespace headrace
