#include "engine/optimizer/loss_scaler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace headrace::engine {
namespace {

LossScalerOptions dynamic_options() {
  LossScalerOptions options;
  options.dynamic = true;
  options.initial = 64;
  options.window_steps = 3;
  options.hysteresis = 1;
  return options;
}

/// Plays a row of steps ('o': overflow, '.': good) and compares the scale after each.
void expect_scales(LossScaler& scaler, const std::string& steps,
                   const std::vector<double>& expected) {
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    scaler.update(steps[i] == 'o');
    ASSERT_EQ(scaler.scale(), expected[i]) << "after step " << i << " of " << steps;
  }
}

TEST(LossScaler, StaticNeverChanges) {
  LossScalerOptions options;
  options.initial = 128;
  LossScaler scaler(options);
  expect_scales(scaler, "o.oo.", {128, 128, 128, 128, 128});
  EXPECT_EQ(scaler.state().iteration, 5);
}

// Tables by hand from the rules: s = iterations since the last overflow (at first: iteration -1)
// minus 1; the scale doubles when s > 0 and s is a multiple of the window (here 3).

TEST(LossScaler, DoublesAfterEachWindowOfGoodSteps) {
  LossScaler scaler(dynamic_options());
  // iteration 0: s = 0; 3: s = 3; 6: s = 6; 9: s = 9.
  expect_scales(scaler, "..........", {64, 64, 64, 128, 128, 128, 256, 256, 256, 512});
}

TEST(LossScaler, HalvesAtOnceWithoutHysteresis) {
  LossScaler scaler(dynamic_options());
  // Overflow at 2: good steps at 3, 4, 5 have s = 0, 1, 2; at 6 s = 3.
  expect_scales(scaler, "..o.....", {64, 64, 32, 32, 32, 32, 64, 64});
  expect_scales(scaler, "oo", {32, 16});
}

TEST(LossScaler, HysteresisIsUsedUpFirst) {
  LossScalerOptions options = dynamic_options();
  options.hysteresis = 3;
  LossScaler scaler(options);
  // Left: 2, 1, then each overflow halves; good steps do not refill it within the window.
  expect_scales(scaler, "oooo", {64, 64, 32, 16});
  EXPECT_EQ(scaler.state().hysteresis_left, 1);
  expect_scales(scaler, ".o", {16, 8});
  // Overflow at 5; iteration 9 has s = 3: doubled and refilled to 3.
  expect_scales(scaler, "....", {8, 8, 8, 16});
  EXPECT_EQ(scaler.state().hysteresis_left, 3);
  expect_scales(scaler, "ooo", {16, 16, 8});
}

TEST(LossScaler, ConsecutiveHysteresisIsRefilledByAnyGoodStep) {
  LossScalerOptions options = dynamic_options();
  options.hysteresis = 2;
  options.consecutive_hysteresis = true;
  LossScaler scaler(options);
  expect_scales(scaler, "o.o.o.", {64, 64, 64, 64, 64, 64});
  expect_scales(scaler, "oo", {64, 32});
}

TEST(LossScaler, AlternatingOverflowsWithoutConsecutiveHysteresis) {
  LossScalerOptions options = dynamic_options();
  options.hysteresis = 2;
  LossScaler scaler(options);
  expect_scales(scaler, "o.o.o.", {64, 64, 32, 32, 16, 16});
}

TEST(LossScaler, StopsAtTheMinimumThenFails) {
  LossScalerOptions options = dynamic_options();
  options.initial = 12;
  options.min = 5;
  LossScaler scaler(options);
  expect_scales(scaler, "oo", {6, 5});  // not 3
  try {
    scaler.update(true);
    FAIL() << "went on below the minimum";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("min_loss_scale"), std::string::npos);
  }
  EXPECT_EQ(scaler.scale(), 5);
}

TEST(LossScaler, OverflowAtTheMinimumIsForgivenWhileHysteresisLasts) {
  LossScalerOptions options = dynamic_options();
  options.initial = 1;
  options.hysteresis = 2;
  LossScaler scaler(options);
  expect_scales(scaler, "o", {1});
  EXPECT_THROW(scaler.update(true), InputError);
}

TEST(LossScaler, GoesOnFromItsState) {
  LossScalerOptions options = dynamic_options();
  options.hysteresis = 2;
  const std::string steps = "..o...o.o.......o";
  for (size_t cut = 0; cut <= steps.size(); ++cut) {
    LossScaler whole(options);
    LossScaler first(options);
    for (const char step : steps) {
      whole.update(step == 'o');
    }
    for (const char step : steps.substr(0, cut)) {
      first.update(step == 'o');
    }
    LossScaler second(options);
    second.restore(first.state());
    for (const char step : steps.substr(cut)) {
      second.update(step == 'o');
    }
    EXPECT_EQ(second.scale(), whole.scale());
    EXPECT_EQ(second.state().iteration, whole.state().iteration);
    EXPECT_EQ(second.state().last_overflow_iteration, whole.state().last_overflow_iteration);
    EXPECT_EQ(second.state().hysteresis_left, whole.state().hysteresis_left);
  }
}

TEST(LossScaler, RefusesImpossibleOptionsAndStates) {
  LossScalerOptions options = dynamic_options();
  options.window_steps = 0;
  EXPECT_THROW(const LossScaler scaler(options), InputError);
  options = dynamic_options();
  options.min = 0;
  EXPECT_THROW(const LossScaler scaler(options), InputError);
  options = dynamic_options();
  options.hysteresis = 0;
  EXPECT_THROW(const LossScaler scaler(options), InputError);
  options = dynamic_options();
  options.initial = 0;
  EXPECT_THROW(const LossScaler scaler(options), InputError);

  LossScaler scaler(dynamic_options());
  EXPECT_THROW(scaler.restore({0, 0, -1, 1}), InputError);
  EXPECT_THROW(scaler.restore({64, 3, 3, 1}), InputError);
  EXPECT_THROW(scaler.restore({64, 3, -1, 0}), InputError);
  EXPECT_NO_THROW(scaler.restore({64, 3, 2, 1}));
}

}  // namespace
}  // namespace headrace::engine
