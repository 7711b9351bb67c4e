#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "support.h"

namespace headrace::scheduler::test {
namespace {

constexpr int64_t kSize = 1 << 20;
constexpr int64_t kPage = 4096;

int count(const Schedule& schedule, ActionKind kind, ObjectId object, Tier from, Tier to) {
  return static_cast<int>(
      std::count_if(schedule.actions.begin(), schedule.actions.end(), [&](const Action& a) {
        return a.kind == kind && a.object == object && a.from == from && a.to == to;
      }));
}

int transfers(const Schedule& schedule, ObjectId object, Tier from, Tier to) {
  return count(schedule, ActionKind::transfer, object, from, to);
}

/// `objects` objects on nvme, used in turn, with room for `slots` of them.
Case cyclic_scan(int objects, int slots, Access access, double seconds, int64_t size = kSize) {
  Case scan;
  for (int o = 0; o < objects; ++o) {
    const ObjectId object = scan.add(fmt::format("o{}", o), size, Tier::nvme, Tier::nvme);
    scan.run(fmt::format("use {}", o), Lane::cpu_optimizer, seconds,
             {{object, Tier::host, access, false}});
  }
  scan.budgets.host = Bytes(slots * size);
  return scan;
}

TEST(CyclicScan, OptimalKeepsAPinnedPartWhereLruHitsNothing) {
  const Case scan = cyclic_scan(20, 10, Access::read, 1e-3);
  const Rounds lru = run_rounds(scan, *make_lru_policy(), 4);
  const Rounds optimal = run_rounds(scan, *make_optimal_policy(), 4);
  EXPECT_EQ(lru.last.nvme_read, Bytes(20 * kSize));
  // No policy can read less than what does not fit; two slots may be spent on overlap.
  EXPECT_LE(optimal.last.nvme_read, Bytes((20 - 8) * kSize));
  EXPECT_GE(optimal.last.nvme_read, Bytes((20 - 10) * kSize));
}

TEST(CyclicScan, EverythingThatFitsIsReadOnce) {
  const Rounds rounds =
      run_rounds(cyclic_scan(10, 10, Access::read, 1e-3), *make_optimal_policy(), 2);
  EXPECT_EQ(rounds.last.nvme_read, Bytes(0));
}

TEST(Streaming, TransferBoundReadsKeepTheLaneBusy) {
  for (const int slots : {3, 5, 10, 15}) {
    const Rounds rounds =
        run_rounds(cyclic_scan(30, slots, Access::read, 2e-4), *make_optimal_policy(), 4);
    EXPECT_EQ(rounds.bound_lane, Lane::nvme_read);
    EXPECT_GT(rounds.bound / rounds.seconds, 0.9) << slots << " slots";
  }
}

TEST(Streaming, OptimizerShardsReadAndWriteAtTheSpeedOfTheDrive) {
  for (const int slots : {4, 6, 12}) {
    const Rounds rounds =
        run_rounds(cyclic_scan(40, slots, Access::update, 1e-4), *make_optimal_policy(), 4);
    EXPECT_EQ(rounds.last.nvme_write, Bytes(40 * kSize));
    EXPECT_GT(rounds.bound / rounds.seconds, 0.9) << slots << " slots";
  }
}

/// A drive with a full queue ends each transfer late, but as many per second. A plan that has the
/// next transfers on their way takes no longer for it.
TEST(Streaming, LateTransfersDoNotKeepTheDriveWaiting) {
  for (const int slots : {12, 18}) {
    Case scan = cyclic_scan(96, slots, Access::update, 1e-3, 28 * kSize);
    scan.rates.nvme_read = 2.3e9;
    scan.rates.nvme_write = 3.4e9;
    scan.rates.nvme_both = 2.7e9;
    for (int round = 0; round < 4; ++round) {
      CompileInput input = scan.input();
      const Schedule schedule = make_optimal_policy()->compile(input);
      const double seconds = simulate(input, schedule).seconds;
      input.rates.nvme_latency += 16.0 * kSize / input.rates.nvme_read;
      EXPECT_LE(simulate(input, schedule).seconds, 1.04 * seconds)
          << slots << " slots, round " << round;
      scan.initial = schedule.final;
    }
  }
}

TEST(Streaming, FetchesHideBehindCompute) {
  for (const int slots : {2, 4, 8}) {
    const Rounds rounds =
        run_rounds(cyclic_scan(30, slots, Access::read, 2e-3), *make_optimal_policy(), 4);
    EXPECT_EQ(rounds.bound_lane, Lane::cpu_optimizer);
    EXPECT_GT(rounds.bound / rounds.seconds, 0.95) << slots << " slots";
  }
}

TEST(Streaming, ForwardAndBackwardThroughASmallDevice) {
  Case step;
  std::vector<ObjectId> weights;
  for (int l = 0; l < 12; ++l) {
    weights.push_back(step.add(fmt::format("W{}", l), kSize, Tier::nvme, Tier::nvme));
  }
  for (int l = 0; l < 12; ++l) {
    step.run(fmt::format("forward {}", l), Lane::compute, 1e-3, {reads(weights[l])});
  }
  for (int l = 11; l >= 0; --l) {
    step.run(fmt::format("backward {}", l), Lane::compute, 2e-3, {reads(weights[l])});
  }
  step.budgets.device = Bytes(5 * kSize);
  step.budgets.host = Bytes(8 * kSize);
  const Rounds lru = run_rounds(step, *make_lru_policy(), 3);
  const Rounds optimal = run_rounds(step, *make_optimal_policy(), 3);
  EXPECT_GT(optimal.bound / optimal.seconds, 0.9);
  EXPECT_LE(optimal.seconds, lru.seconds * 1.001);
  EXPECT_LT(optimal.last.nvme_read, lru.last.nvme_read);
  EXPECT_LE(optimal.last.host_to_device, lru.last.host_to_device);
}

TEST(WriteBack, DirtyActivationsGoDownOnceAndComeBackOnce) {
  Case step;
  std::vector<ObjectId> saved;
  for (int l = 0; l < 10; ++l) {
    saved.push_back(step.add(fmt::format("A{}", l), kSize, Tier::nvme));
    step.run(fmt::format("forward {}", l), Lane::compute, 1e-3, {writes(saved[l])});
  }
  for (int l = 9; l >= 0; --l) {
    step.run(fmt::format("backward {}", l), Lane::compute, 1e-3, {last_reads(saved[l])});
  }
  step.budgets.device = Bytes(3 * kSize);
  step.budgets.host = Bytes(3 * kSize);
  const Rounds rounds = run_rounds(step, *make_optimal_policy(), 2);
  EXPECT_GT(rounds.last.nvme_write, Bytes(0));
  EXPECT_LE(rounds.last.nvme_write, Bytes(6 * kSize));
  EXPECT_EQ(rounds.last.nvme_read, rounds.last.nvme_write);
  EXPECT_EQ(rounds.last.host_to_device, rounds.last.device_to_host);
  EXPECT_TRUE(rounds.last.final.empty());
  EXPECT_EQ(transfers(rounds.last, saved[9], Tier::device, Tier::host), 0);
}

TEST(WriteBack, DeadValuesAreNeverWritten) {
  Case step;
  for (int l = 0; l < 10; ++l) {
    const ObjectId scratch = step.add(fmt::format("T{}", l), kSize, Tier::nvme);
    step.run("make", Lane::compute, 1e-3, {writes(scratch)});
    step.run("use", Lane::compute, 1e-3, {last_reads(scratch)});
  }
  step.set_budgets(true, 0, 0);
  const Rounds rounds = run_rounds(step, *make_optimal_policy(), 1);
  EXPECT_EQ(rounds.last.device_to_host, Bytes(0));
  EXPECT_EQ(rounds.last.nvme_write, Bytes(0));
}

TEST(Homes, DeviceHomeIsRefreshedAfterAnUpdateInTheHost) {
  Case step;
  const ObjectId weights = step.add("W", kSize, Tier::host, Tier::device);
  const ObjectId state = step.add("S", 2 * kSize, Tier::nvme, Tier::nvme);
  step.run("forward", Lane::compute, 1e-3, {reads(weights)});
  step.run("update", Lane::cpu_optimizer, 1e-3,
           {updates(weights, Tier::host), updates(state, Tier::host)});
  step.set_budgets(true, 0, 0);
  step.place_homes();
  EXPECT_EQ(step.budgets.device, Bytes(kSize));
  EXPECT_EQ(step.budgets.host, Bytes(3 * kSize));
  const Rounds rounds = run_rounds(step, *make_optimal_policy(), 1);
  EXPECT_EQ(transfers(rounds.last, weights, Tier::device, Tier::host), 1);
  EXPECT_EQ(transfers(rounds.last, weights, Tier::host, Tier::device), 1);
  EXPECT_EQ(transfers(rounds.last, weights, Tier::host, Tier::nvme), 0);
  for (const Action& action : rounds.last.actions) {
    if (action.kind == ActionKind::transfer && action.to == Tier::device) {
      EXPECT_EQ(action.offset, 0);
    }
  }
}

TEST(Homes, HostHomeReceivesWhatTheDeviceChanged) {
  Case step;
  const ObjectId weights = step.add("W", kSize, Tier::host, Tier::host);
  step.run("train", Lane::compute, 1e-3, {updates(weights)});
  step.set_budgets(true, 0, 0);
  step.place_homes();
  const Rounds rounds = run_rounds(step, *make_optimal_policy(), 2);
  EXPECT_EQ(rounds.last.device_to_host, Bytes(kSize));
  EXPECT_EQ(rounds.last.host_to_device, Bytes(0));  // the device copy is still current
}

TEST(Homes, DirtyInitialCopiesAreWrittenHome) {
  Case step;
  const ObjectId weights = step.add("W", kSize, Tier::nvme, Tier::nvme);
  step.run("read", Lane::compute, 1e-3, {reads(weights)});
  step.set_budgets(true, 0, 0);
  step.initial = {{weights, Tier::device, 0, true}};
  const Rounds rounds = run_rounds(step, *make_optimal_policy(), 1);
  EXPECT_EQ(transfers(rounds.last, weights, Tier::host, Tier::nvme), 1);
  EXPECT_EQ(rounds.last.nvme_read, Bytes(0));
}

// The slots of an operation's own objects split the space: one has to move.
TEST(Fragmentation, OwnSlotsAreMovedTogether) {
  Case step;
  const ObjectId low = step.add("low", kSize, Tier::nvme, Tier::nvme);
  const ObjectId middle = step.add("middle", kSize, Tier::nvme, Tier::nvme);
  const ObjectId big = step.add("big", 2 * kSize, Tier::nvme, Tier::nvme);
  step.run("change", Lane::compute, 1e-3, {updates(low), updates(middle)});
  step.run("all", Lane::compute, 1e-3, {reads(low), reads(middle), reads(big)});
  step.set_budgets(true, 0, 0);
  EXPECT_EQ(step.budgets.device, Bytes(4 * kSize));
  step.initial = {{low, Tier::device, kSize, false}, {middle, Tier::device, 3 * kSize, false}};
  const Rounds rounds = run_rounds(step, *make_optimal_policy(), 1);
  EXPECT_EQ(transfers(rounds.last, big, Tier::host, Tier::device), 1);
}

TEST(Capacity, MessageNamesOperationTierAndBytes) {
  Case step;
  const ObjectId a = step.add("a", 3 * kPage, Tier::nvme, Tier::nvme);
  const ObjectId b = step.add("b", 5 * kPage - 1, Tier::nvme, Tier::nvme);
  step.run("small", Lane::compute, 0, {reads(a)});
  step.run("large", Lane::compute, 0, {reads(a), reads(b)});
  EXPECT_EQ(minimum_device_budget(step.trace, step.objects, Bytes(kPage)), Bytes(8 * kPage));
  step.budgets.device = Bytes(7 * kPage);
  step.budgets.host = Bytes(kSize);
  try {
    make_optimal_policy()->compile(step.input());
    FAIL() << "no error";
  } catch (const CapacityError& error) {
    const std::string text = error.what();
    for (const char* part : {"'large'", "device", "32768", "28672", "4096"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
}

TEST(Capacity, ResidentHomesCountEvenWhenNothingUsesThem) {
  Case step;
  step.add("pinned", 2 * kPage, Tier::host, Tier::host);
  EXPECT_EQ(minimum_host_budget(step.trace, step.objects, Bytes(0), Bytes(kPage)),
            Bytes(2 * kPage));
}

TEST(Capacity, ObjectsThatCannotSinkKeepTheirSlotsForTheirLifetime) {
  Case step;
  const ObjectId a = step.add("a", 2 * kPage, Tier::host);
  const ObjectId b = step.add("b", 3 * kPage, Tier::host);
  const ObjectId c = step.add("c", 4 * kPage, Tier::nvme, Tier::nvme);
  step.run("make a", Lane::compute, 0, {writes(a, Tier::host)});
  step.run("read c", Lane::compute, 0, {reads(c, Tier::host)});
  step.run("end a", Lane::compute, 0, {last_reads(a, Tier::host)});
  step.run("make b", Lane::compute, 0, {writes(b, Tier::host)});
  step.run("end b", Lane::compute, 0, {last_reads(b, Tier::host)});
  EXPECT_EQ(minimum_host_budget(step.trace, step.objects, Bytes(0), Bytes(kPage)),
            Bytes(6 * kPage));
}

TEST(Input, InconsistentTracesAreRefused) {
  const auto compile = [](Case& step) { return make_optimal_policy()->compile(step.input()); };
  Case unwritten;
  const ObjectId t = unwritten.add("t", kPage, Tier::nvme);
  unwritten.budgets.host = Bytes(kSize);
  unwritten.run("read", Lane::compute, 0, {reads(t, Tier::host)});
  EXPECT_THROW(compile(unwritten), InputError);

  Case twice;
  const ObjectId w = twice.add("w", kPage, Tier::nvme, Tier::nvme);
  twice.budgets.host = Bytes(kSize);
  twice.run("read", Lane::compute, 0, {reads(w, Tier::host), reads(w, Tier::host)});
  EXPECT_THROW(compile(twice), InputError);

  Case no_home_slot;
  no_home_slot.add("h", kPage, Tier::host, Tier::host);
  no_home_slot.budgets.host = Bytes(kSize);
  EXPECT_THROW(compile(no_home_slot), InputError);

  Case below_floor;
  const ObjectId d = below_floor.add("d", kPage, Tier::device);
  below_floor.budgets = {Bytes(kSize), Bytes(kSize), Bytes(kPage)};
  below_floor.run("write", Lane::compute, 0, {writes(d, Tier::host)});
  EXPECT_THROW(compile(below_floor), InputError);

  Case overlap;
  const ObjectId a = overlap.add("a", 2 * kPage, Tier::nvme, Tier::nvme);
  const ObjectId b = overlap.add("b", 2 * kPage, Tier::nvme, Tier::nvme);
  overlap.budgets.host = Bytes(kSize);
  overlap.initial = {{a, Tier::host, 0, false}, {b, Tier::host, kPage, false}};
  EXPECT_THROW(compile(overlap), InputError);
}

TEST(Input, EmptyTraceGivesAnEmptySchedule) {
  Case nothing;
  const Schedule schedule = make_optimal_policy()->compile(nothing.input());
  EXPECT_TRUE(schedule.actions.empty());
  EXPECT_EQ(violations(nothing.input(), schedule), "");
  EXPECT_EQ(simulate(nothing.input(), schedule).seconds, 0);
}

}  // namespace
}  // namespace headrace::scheduler::test
