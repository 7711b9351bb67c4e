#include "transformer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <iostream>

namespace headrace::scheduler::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr double kSlowdown = 50;  ///< of builds that are not made for speed
#else
constexpr double kSlowdown = 1;
#endif

double compile_seconds(const Case& test_case, const Policy& policy, Schedule& schedule) {
  const CompileInput input = test_case.input();
  const std::clock_t begin = std::clock();  // of this process, other loads do not count
  schedule = policy.compile(input);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

int64_t moved(const Schedule& s) {
  return (s.nvme_read + s.nvme_write + s.host_to_device + s.device_to_host).count();
}

void compare_policies(const TransformerShape& shape, const Rates& rates) {
  for (const Tier home : {Tier::nvme, Tier::host}) {
    for (const int64_t extra_mib : {0, 16, 64, 256}) {
      Case step = transformer(shape, home);
      step.rates = rates;
      step.set_budgets(true, extra_mib << 19, extra_mib << 20);
      step.place_homes();
      const Rounds lru = run_rounds(step, *make_lru_policy(), 4);
      const Rounds optimal = run_rounds(step, *make_optimal_policy(), 4);
      const auto io_lru = static_cast<double>((lru.last.nvme_read + lru.last.nvme_write).count());
      const auto io_optimal =
          static_cast<double>((optimal.last.nvme_read + optimal.last.nvme_write).count());
      std::cout << fmt::format(
          "W home {:4}, +{:3} MiB: nvme {:5.0f} -> {:5.0f} MiB, all {:5.0f} -> {:5.0f} MiB, step "
          "{:6.1f} -> {:6.1f} ms, bound {:6.1f} -> {:6.1f} ms ({})\n",
          to_string(home), extra_mib, io_lru / 1048576.0, io_optimal / 1048576.0,
          moved(lru.last) / 1048576.0, moved(optimal.last) / 1048576.0, lru.seconds * 1e3,
          optimal.seconds * 1e3, lru.bound * 1e3, optimal.bound * 1e3,
          to_string(optimal.bound_lane));
      // More bytes only for at least as much less time, and at most one percent of them.
      EXPECT_LE(io_optimal, 1.01 * io_lru);
      EXPECT_LE(io_optimal * optimal.seconds, io_lru * lru.seconds);
      // Up to half a percent of time is given for fewer bytes.
      EXPECT_LE(optimal.seconds, lru.seconds * 1.005);
    }
  }
}

TEST(Transformer, OptimalIsNeverWorseThanLruWhenBoundByTheDrive) {
  TransformerShape shape;
  compare_policies(shape, {});
  shape.micro_batches = 3;
  compare_policies(shape, {});
}

TEST(Transformer, OptimalIsNeverWorseThanLruWhenBoundByCompute) {
  TransformerShape shape;
  shape.forward_seconds = 20e-3;
  shape.micro_batches = 2;
  compare_policies(shape, {});
}

/// What the quick policy is for: to tell which of two steps is faster.
TEST(Transformer, QuickPlansAreSoundAndNearlyAsFast) {
  const auto quick = make_optimal_policy(PolicyEffort::quick);
  for (const int64_t micro_batches : {1, 3}) {
    for (const int64_t extra_mib : {0, 16, 64, 256}) {
      TransformerShape shape;
      shape.micro_batches = micro_batches;
      Case step = transformer(shape, Tier::nvme);
      step.set_budgets(true, extra_mib << 19, extra_mib << 20);
      step.place_homes();
      const CompileInput input = step.input();
      const Schedule fast = quick->compile(input);
      const Schedule best = make_optimal_policy()->compile(input);
      EXPECT_EQ(violations(input, fast), "");
      EXPECT_LE(simulate(input, fast).seconds, 1.1 * simulate(input, best).seconds)
          << micro_batches << " micro-batches, " << extra_mib << " MiB";
    }
  }
}

TEST(Transformer, ValuesAreRightInRandomOrders) {
  TransformerShape shape{4, 2, 3 * 64, 5 * 64, 2 * 64, 1e-5, 1e-5};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed, 4);
    Case step = transformer(shape, seed % 2 == 0 ? Tier::nvme : Tier::host);
    step.budgets.alignment = Bytes(64);
    step.set_budgets(true, 64 * static_cast<int64_t>(random.below(20)),
                     64 * static_cast<int64_t>(random.below(40)));
    step.place_homes();
    for (int round = 0; round < 3; ++round) {
      const Schedule schedule = make_optimal_policy()->compile(step.input());
      ASSERT_EQ(replay_values(step, schedule, random), "") << seed;
      step.initial = schedule.final;
    }
  }
}

TEST(CompileTime, LargeTracesTakeLessThanASecond) {
  TransformerShape shape;
  shape.layers = 1000;
  shape.micro_batches = 6;
  Case step = transformer(shape);
  step.set_budgets(true, int64_t{2} << 30, int64_t{8} << 30);
  Schedule schedule;
  const double seconds = compile_seconds(step, *make_optimal_policy(), schedule);
  std::cout << fmt::format("{} operations, {} objects, {} actions: {:.3f} s\n",
                           step.trace.operations.size(), step.objects.size(),
                           schedule.actions.size(), seconds);
  EXPECT_LT(seconds, kSlowdown);
  EXPECT_GT(step.trace.operations.size(), 19000U);
  EXPECT_GT(step.objects.size(), 10000U);
  EXPECT_EQ(violations(step.input(), schedule), "");
}

TEST(CompileTime, SmallTracesTakeMilliseconds) {
  Case step = transformer({});
  step.set_budgets(true, int64_t{16} << 20, int64_t{64} << 20);
  Schedule schedule;
  const double seconds = compile_seconds(step, *make_optimal_policy(), schedule);
  std::cout << fmt::format("{} operations, {} actions: {:.2f} ms\n", step.trace.operations.size(),
                           schedule.actions.size(), seconds * 1e3);
  EXPECT_LT(seconds, 20e-3 * kSlowdown);
}

}  // namespace
}  // namespace headrace::scheduler::test
