// Virtual time of a drive against arithmetic.

#include "aio/drive_lanes.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace headrace::aio {
namespace {

using Clock = DriveLanes::Clock;

constexpr double kNanosecond = 3e-9;  // of the clock, rounded

Clock::time_point at(double seconds) {
  return Clock::time_point(std::chrono::hours(1)) +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Seconds at which each token was served.
std::map<uint32_t, double> served(DriveLanes& lanes, double until) {
  std::map<uint32_t, double> times;
  for (const DriveLanes::End& end : lanes.take_served(at(until))) {
    times[end.token] = std::chrono::duration<double>(end.time - at(0)).count();
  }
  return times;
}

TEST(DriveLanes, EachDirectionServesInOrderAtItsRate) {
  DriveLanes lanes({.read_bytes_per_second = 1000, .write_bytes_per_second = 500});
  lanes.admit(IoOperation::read, 1, Bytes(1000), at(0));
  lanes.admit(IoOperation::read, 2, Bytes(500), at(0.5));
  lanes.admit(IoOperation::write, 3, Bytes(500), at(0.5));
  lanes.admit(IoOperation::read, 4, Bytes(100), at(3));  // the lane has been idle: not made up for
  const auto times = served(lanes, 10);
  EXPECT_NEAR(times.at(1), 1, kNanosecond);
  EXPECT_NEAR(times.at(2), 1.5, kNanosecond);
  EXPECT_NEAR(times.at(3), 1.5, kNanosecond);
  EXPECT_NEAR(times.at(4), 3.1, kNanosecond);
}

TEST(DriveLanes, BothDirectionsShareOneLimit) {
  DriveLanes lanes({.read_bytes_per_second = 1000,
                    .write_bytes_per_second = 500,
                    .both_bytes_per_second = 1050});
  // Seven tenths of each while both go on: 700 and 350 a second from 1 to 3 s.
  lanes.admit(IoOperation::read, 1, Bytes(3000), at(0));
  lanes.admit(IoOperation::write, 2, Bytes(700), at(1));
  EXPECT_NEAR(std::chrono::duration<double>(lanes.next_end() - at(0)).count(), 3, kNanosecond);
  const auto times = served(lanes, 10);
  EXPECT_NEAR(times.at(2), 3, kNanosecond);
  EXPECT_NEAR(times.at(1), 3.6, kNanosecond);
}

TEST(DriveLanes, OneLimitAloneIsThatOfEachDirection) {
  DriveLanes lanes({.both_bytes_per_second = 1000});
  lanes.admit(IoOperation::read, 1, Bytes(1000), at(0));
  lanes.admit(IoOperation::write, 2, Bytes(1000), at(2));
  lanes.admit(IoOperation::read, 3, Bytes(250), at(2));
  const auto times = served(lanes, 10);
  EXPECT_NEAR(times.at(1), 1, kNanosecond);
  EXPECT_NEAR(times.at(3), 2.5, kNanosecond);
  EXPECT_NEAR(times.at(2), 3.25, kNanosecond);
}

TEST(DriveLanes, WithoutALimitAllIsServedAtOnce) {
  DriveLanes lanes({.read_bytes_per_second = 1000});
  lanes.admit(IoOperation::write, 1, Bytes(1 << 30), at(1));
  EXPECT_NEAR(served(lanes, 1).at(1), 1, kNanosecond);
  EXPECT_EQ(lanes.next_end(), Clock::time_point::max());
  EXPECT_EQ(lanes.bytes_waiting(IoOperation::write), 0);
}

/// The same in steps of 0.1 ms, with what is served within each.
std::map<uint32_t, double> small_steps(const std::vector<std::pair<IoOperation, double>>& arrivals,
                                       const std::vector<double>& bytes) {
  constexpr double kStep = 1e-4;
  std::map<uint32_t, double> times;
  std::array<std::deque<std::pair<uint32_t, double>>, 2> waiting;
  size_t next = 0;
  for (double now = 0; times.size() < arrivals.size(); now += kStep) {
    for (; next < arrivals.size() && arrivals[next].second <= now; ++next) {
      waiting[static_cast<size_t>(arrivals[next].first)].emplace_back(next, bytes[next]);
    }
    const double share = waiting[0].empty() || waiting[1].empty() ? 1 : 0.7;
    for (size_t i = 0; i < 2; ++i) {
      double left = (i == 0 ? 2000 : 1000) * share * kStep;
      while (left > 0 && !waiting[i].empty()) {
        const double moved = std::min(left, waiting[i].front().second);
        left -= moved;
        waiting[i].front().second -= moved;
        if (waiting[i].front().second <= 1e-9) {
          times[waiting[i].front().first] = now + kStep;
          waiting[i].pop_front();
        }
      }
    }
  }
  return times;
}

TEST(DriveLanes, RandomArrivalsAgreeWithASimulationInSmallSteps) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed, 9);
    std::vector<std::pair<IoOperation, double>> arrivals;
    std::vector<double> bytes;
    double now = 0;
    DriveLanes lanes({.read_bytes_per_second = 2000,
                      .write_bytes_per_second = 1000,
                      .both_bytes_per_second = 2100});
    std::map<uint32_t, double> times;
    for (uint32_t i = 0; i < 20; ++i) {
      now += 0.1 * static_cast<double>(random.below(4));
      arrivals.emplace_back(random.below(2) == 0 ? IoOperation::read : IoOperation::write, now);
      bytes.push_back(1 + static_cast<double>(random.below(400)));
      lanes.admit(arrivals.back().first, i, Bytes(static_cast<int64_t>(bytes.back())), at(now));
      if (random.below(2) == 0) {  // when it is asked for changes nothing
        times.merge(served(lanes, now));
      }
    }
    times.merge(served(lanes, 1000));
    const auto expected = small_steps(arrivals, bytes);
    ASSERT_EQ(times.size(), expected.size());
    for (const auto& [token, time] : expected) {
      EXPECT_NEAR(times.at(token), time, 3e-3) << seed << " " << token;
    }
  }
}

}  // namespace
}  // namespace headrace::aio
