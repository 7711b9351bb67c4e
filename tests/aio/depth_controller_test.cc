// The search for the queue depth, fed with numbers: no threads, no clock, no I/O.

#include "aio/depth_controller.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "aio/depth_tuner.h"
#include "base/error.h"
#include "base/random.h"

namespace headrace::aio {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

using Device = std::function<double(int depth)>;

/// Runs windows over a device; every depth asked for must be in range.
void run(DepthController& controller, const Device& device, int windows, int least, int most) {
  for (int i = 0; i < windows; ++i) {
    ASSERT_THAT(controller.depth(), AllOf(Ge(least), Le(most)));
    controller.note_window(device(controller.depth()));
  }
}

/// A device that is as fast as it gets with `knee` parts in flight.
Device saturating(int knee) {
  return [knee](int depth) { return std::min(1.0, static_cast<double>(depth) / knee); };
}

TEST(DepthController, FindsTheKneeFromBelowAndAbove) {
  struct Case {
    int knee;
    int settled;
  };
  for (const Case& one : {Case{1000, 256}, Case{256, 256}, Case{200, 256}, Case{128, 128},
                          Case{64, 64}, Case{32, 32}, Case{16, 16}, Case{1, 16}}) {
    DepthController controller(64, 16, 256);
    run(controller, saturating(one.knee), 40, 16, 256);
    EXPECT_EQ(controller.settled_depth(), one.settled) << "knee " << one.knee;
  }
}

TEST(DepthController, ThreePercentIsTheBorder) {
  for (const double gain : {1.02, 1.04}) {
    DepthController controller(64, 64, 128);
    run(
        controller, [&](int depth) { return depth == 128 ? gain : 1.0; }, 40, 64, 128);
    EXPECT_EQ(controller.settled_depth(), gain > 1.03 ? 128 : 64) << gain;
  }
}

TEST(DepthController, SmallerIsTakenOnlyWhenAsFast) {
  for (const double loss : {0.005, 0.02}) {
    DepthController controller(64, 32, 64);
    run(
        controller, [&](int depth) { return depth == 32 ? 1 - loss : 1.0; }, 40, 32, 64);
    EXPECT_EQ(controller.settled_depth(), loss < 0.01 ? 32 : 64) << loss;
  }
}

TEST(DepthController, TooManyInFlightMayBeSlower) {
  DepthController controller(64, 16, 256);
  run(
      controller, [](int depth) { return depth <= 32 ? depth / 32.0 : 32.0 / depth; }, 40, 16, 256);
  EXPECT_EQ(controller.settled_depth(), 32);
}

TEST(DepthController, ClimbsAgainWhenTheDeviceChanges) {
  DepthController controller(64, 16, 256);
  run(controller, saturating(256), 60, 16, 256);
  EXPECT_EQ(controller.settled_depth(), 256);
  run(controller, saturating(16), 3 * DepthController::kRestWindows, 16, 256);
  EXPECT_LE(controller.settled_depth(), 32);
  run(controller, saturating(256), 4 * DepthController::kRestWindows, 16, 256);
  EXPECT_EQ(controller.settled_depth(), 256);
}

TEST(DepthController, RestIsMostOfTheTime) {
  DepthController controller(64, 16, 256);
  run(controller, saturating(64), 40, 16, 256);
  int elsewhere = 0;
  constexpr int kWindows = 10 * DepthController::kRestWindows;
  for (int i = 0; i < kWindows; ++i) {
    elsewhere += controller.depth() == 64 ? 0 : 1;
    controller.note_window(saturating(64)(controller.depth()));
  }
  EXPECT_GT(elsewhere, 0);
  EXPECT_LT(elsewhere, kWindows / 8);
}

TEST(DepthController, OutliersDoNotDecide) {
  // One window in six is ten times too slow, whichever depth it has: the median ignores it.
  DepthController controller(64, 16, 256);
  int window = 0;
  run(
      controller, [&](int depth) { return saturating(64)(depth) * (++window % 6 == 3 ? 0.1 : 1); },
      60, 16, 256);
  EXPECT_EQ(controller.settled_depth(), 64);
}

/// Where a controller settles on a device whose windows swing by 7 %, as a shared drive's do.
std::vector<int> settled_on_noisy(int knee, int start) {
  std::vector<int> depths;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed, 0);
    const auto noise = [&] {
      double sum = 0;  // of 12 uniform numbers: variance 1
      for (int i = 0; i < 12; ++i) {
        sum += uniform_from(random.next_u32());
      }
      return 1 + 0.07 * (sum - 6);
    };
    DepthController controller(start, 2, 256);
    run(
        controller, [&](int depth) { return saturating(knee)(depth) * noise(); }, 600, 2, 256);
    depths.push_back(controller.settled_depth());
  }
  std::sort(depths.begin(), depths.end());
  return depths;
}

TEST(DepthController, NoiseOfTheDriveHardlyMovesIt) {
  struct Case {
    int knee;
    int least;
    int most;
  };
  for (const Case& one : {Case{8, 8, 32}, Case{16, 16, 32}, Case{64, 64, 128}}) {
    const std::vector<int> depths = settled_on_noisy(one.knee, 16);
    EXPECT_EQ(depths[depths.size() / 2], one.knee) << "knee " << one.knee;
    // Nine of ten.
    EXPECT_GE(depths[2], one.least) << "knee " << one.knee;
    EXPECT_LE(depths[depths.size() - 3], one.most) << "knee " << one.knee;
  }
}

TEST(DepthController, AnyRatesKeepTheBounds) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed, 0);
    const auto least = static_cast<int>(1 + random.below(20));
    const auto start = least + static_cast<int>(random.below(100));
    const auto most = start + static_cast<int>(random.below(400));
    DepthController controller(start, least, most);
    run(
        controller, [&](int) { return static_cast<double>(random.below(1000)); }, 2000, least,
        most);
  }
}

TEST(DepthController, OneDepthIsNoSearch) {
  DepthController controller(7, 7, 7);
  run(controller, saturating(100), 500, 7, 7);
  EXPECT_THROW(DepthController(8, 9, 10), InternalError);
  EXPECT_THROW(DepthController(8, 0, 10), InternalError);
  EXPECT_THROW(DepthController(8, 1, 7), InternalError);
}

/// A closed loop over a device, for the tuner: in each tick so many blocks end as the depth gives.
class Loop {
 public:
  explicit Loop(DepthTuner& tuner) : tuner_(tuner) {}

  void run(const Device& blocks_per_tick, int ticks, QueueLoad load, bool full) {
    for (int i = 0; i < ticks; ++i) {
      seconds_ += 0.01;
      bytes_ += static_cast<int64_t>(blocks_per_tick(depth_) * kBlock);
      depth_ = tuner_.note({seconds_, bytes_, load, full});
    }
  }
  int depth() const { return depth_; }

  static constexpr int64_t kBlock = 1000;

 private:
  DepthTuner& tuner_;
  double seconds_ = 5;
  int64_t bytes_ = 12345;
  int depth_ = 64;
};

/// 32 blocks per tick once the depth is `knee`.
Device blocks(int knee) {
  return [knee](int depth) { return 32 * saturating(knee)(depth); };
}

/// The depth that the tuner is at for most of the next ticks.
int usual_depth(Loop& loop, const Device& device, QueueLoad load) {
  std::map<int, int> seen;
  for (int i = 0; i < 400; ++i) {
    loop.run(device, 1, load, true);
    ++seen[loop.depth()];
  }
  return std::max_element(seen.begin(), seen.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

TEST(DepthTuner, EachLoadHasItsOwnDepth) {
  DepthTuner tuner(64, 16, 256, Loop::kBlock);
  Loop loop(tuner);
  loop.run(blocks(256), 2000, QueueLoad::read, true);
  loop.run(blocks(32), 2000, QueueLoad::write, true);
  EXPECT_EQ(usual_depth(loop, blocks(32), QueueLoad::write), 32);
  EXPECT_EQ(usual_depth(loop, blocks(256), QueueLoad::read), 256);
}

TEST(DepthTuner, TimeWithoutAFullQueueDoesNotCount) {
  DepthTuner tuner(64, 16, 256, Loop::kBlock);
  Loop loop(tuner);
  loop.run(blocks(256), 5000, QueueLoad::read, false);
  EXPECT_EQ(loop.depth(), 64);
  // Idle ticks between bursts would make every depth look alike.
  for (int burst = 0; burst < 200; ++burst) {
    loop.run(blocks(256), 40, QueueLoad::read, true);
    loop.run([](int) { return 0.0; }, 40, QueueLoad::read, false);
  }
  EXPECT_EQ(usual_depth(loop, blocks(256), QueueLoad::read), 256);
}

}  // namespace
}  // namespace headrace::aio
