#include "engine/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "tests/engine/late_stream.h"
#include "tests/engine/three_tiers.h"

namespace headrace::engine {
namespace {

using scheduler::Access;
using scheduler::Lane;
using test::Tiers;

constexpr int64_t kSlot = 4096;

struct Program {
  scheduler::Trace trace;
  std::vector<scheduler::ObjectFacts> objects;
};

/// Random operations over persistent objects (home nvme) and objects that live inside the trace.
Program random_program(Random& random, bool has_device) {
  Program program;
  const auto persistent = static_cast<uint32_t>(2 + random.below(5));
  const auto transient = static_cast<uint32_t>(1 + random.below(4));
  for (uint32_t i = 0; i < persistent + transient; ++i) {
    scheduler::ObjectFacts facts;
    facts.name = "object." + std::to_string(i);
    facts.size = Bytes(kSlot * static_cast<int64_t>(1 + random.below(3)));
    facts.floor = Tier::nvme;
    if (i < persistent) {
      facts.home = Tier::nvme;
    }
    program.objects.push_back(facts);
  }
  std::set<uint32_t> alive;
  const auto add_write_of_all = [&] {
    for (uint32_t i = 0; i < persistent; ++i) {
      program.trace.operations.push_back(
          {"init", Lane::cpu_optimizer, {{ObjectId{i}, Tier::host, Access::write, false}}, 1e-5});
    }
  };
  add_write_of_all();
  const uint64_t count = 10 + random.below(30);
  for (uint64_t n = 0; n < count; ++n) {
    scheduler::Operation operation;
    operation.name = "op." + std::to_string(n);
    const bool on_device = has_device && random.below(2) == 0;
    operation.lane = on_device || random.below(2) == 0 ? Lane::compute : Lane::cpu_optimizer;
    operation.in_order = operation.lane == Lane::compute && random.below(4) > 0;
    operation.seconds = 1e-5;
    std::set<uint32_t> used;
    const uint64_t uses = 1 + random.below(3);
    for (uint64_t u = 0; u < uses; ++u) {
      const auto object = static_cast<uint32_t>(random.below(persistent + transient));
      if (!used.insert(object).second) {
        continue;
      }
      scheduler::Use use{ObjectId{object}, on_device ? Tier::device : Tier::host, Access::read,
                         false};
      if (object < persistent) {
        use.access = static_cast<Access>(random.below(3));
      } else if (alive.count(object) == 0) {
        use.access = Access::write;
        alive.insert(object);
      } else {
        use.access = static_cast<Access>(random.below(3));
        use.discard_after = random.below(3) == 0;
        if (use.discard_after) {
          alive.erase(object);
        }
      }
      operation.uses.push_back(use);
    }
    program.trace.operations.push_back(operation);
  }
  for (const uint32_t object : alive) {
    program.trace.operations.push_back(
        {"discard", Lane::compute, {{ObjectId{object}, Tier::host, Access::read, true}}, 1e-5});
  }
  return program;
}

/// Folds everything an operation reads into a digest, and fills what it writes from that digest, so
/// that a single wrong byte anywhere changes everything after it.
void mix(const scheduler::Operation& operation, uint32_t number,
         const std::vector<std::span<std::byte>>& uses, uint64_t& digest) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL * (number + 1);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (operation.uses[i].access == Access::write) {
      continue;
    }
    for (const std::byte b : uses[i]) {
      hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001B3ULL;
    }
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    if (operation.uses[i].access == Access::read) {
      continue;
    }
    Random bytes(hash, i);
    for (std::byte& b : uses[i]) {
      b = static_cast<std::byte>(bytes.next_u32());
    }
  }
  digest = hash;
}

/// Digest of every operation when objects simply lie in memory and operations run one by one.
std::vector<uint64_t> sequential_digests(const Program& program, int repeats) {
  std::vector<std::vector<std::byte>> values;
  for (const auto& object : program.objects) {
    values.emplace_back(static_cast<size_t>(object.size.count()));
  }
  std::vector<uint64_t> digests;
  for (int r = 0; r < repeats; ++r) {
    for (uint32_t n = 0; n < program.trace.operations.size(); ++n) {
      std::vector<std::span<std::byte>> uses;
      for (const auto& use : program.trace.operations[n].uses) {
        uses.emplace_back(values[index_of(use.object)]);
      }
      digests.emplace_back();
      mix(program.trace.operations[n], n, uses, digests.back());
    }
  }
  return digests;
}

/// What the record of a run must agree with: its schedule, its report and itself.
void check_record(const scheduler::CompileInput& input, const scheduler::Schedule& schedule,
                  const RunReport& report) {
  const RunRecord& record = *report.record;
  std::vector<const scheduler::Span*> span_of(schedule.actions.size());
  double lane_end[scheduler::kLaneCount] = {};
  for (const scheduler::Span& span : record.spans) {
    EXPECT_EQ(span_of[span.action], nullptr);
    span_of[span.action] = &span;
    EXPECT_GE(span.begin, 0);
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, report.split.total);
    const auto lane = static_cast<size_t>(span.lane);
    if (span.lane != Lane::nvme_read && span.lane != Lane::nvme_write) {
      EXPECT_GE(span.begin, lane_end[lane]);
    }
    lane_end[lane] = span.end;
  }
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const scheduler::ActionKind kind = schedule.actions[i].kind;
    const bool takes_time =
        kind == scheduler::ActionKind::transfer || kind == scheduler::ActionKind::operation;
    EXPECT_EQ(span_of[i] != nullptr, takes_time) << i;
    for (const uint32_t before : schedule.actions[i].after) {
      if (takes_time && span_of[before] != nullptr) {
        EXPECT_GE(span_of[i]->begin, span_of[before]->end) << before << " -> " << i;
      }
    }
  }

  TimeSplit sums;
  double accounted = 0;
  for (const Charge& charge : record.charges) {
    EXPECT_EQ(charge.begin, accounted);
    EXPECT_GT(charge.end, charge.begin);
    part_of(sums, charge.lane) += charge.end - charge.begin;
    accounted = charge.end;
  }
  EXPECT_NEAR(accounted, report.split.total, 1e-9);
  for (const auto part : {&TimeSplit::compute, &TimeSplit::cpu_optimizer, &TimeSplit::nvme_read,
                          &TimeSplit::nvme_write, &TimeSplit::host_to_device,
                          &TimeSplit::device_to_host, &TimeSplit::other}) {
    EXPECT_NEAR(sums.*part, report.split.*part, 1e-9);
  }

  double time = 0;
  for (const ArenaLevel& level : record.levels) {
    EXPECT_GE(level.time, time);
    time = level.time;
    EXPECT_LE(level.used, level.tier == Tier::device ? input.budgets.device : input.budgets.host);
  }
}

/// Bytes in the tier's slots when the schedule starts and ends, counted from its residencies.
Bytes resident_bytes(const scheduler::CompileInput& input,
                     const std::vector<scheduler::Residency>& copies, Tier tier) {
  Bytes bytes;
  for (const scheduler::Residency& copy : copies) {
    bytes += copy.tier == tier ? (*input.objects)[index_of(copy.object)].size : Bytes(0);
  }
  return bytes;
}

void check_levels(const scheduler::CompileInput& input, const scheduler::Schedule& schedule,
                  const RunRecord& record) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    std::vector<Bytes> levels;
    for (const ArenaLevel& level : record.levels) {
      if (level.tier == tier) {
        levels.push_back(level.used);
      }
    }
    ASSERT_FALSE(levels.empty());
    EXPECT_EQ(levels.front(), resident_bytes(input, schedule.initial, tier));
    EXPECT_EQ(levels.back(), resident_bytes(input, schedule.final, tier));
  }
}

std::vector<uint64_t> executed_digests(const Program& program, int repeats, Tiers& tiers,
                                       const scheduler::Policy& policy, Bytes device, Bytes host) {
  for (const auto& object : program.objects) {
    tiers.store->add({object.name, object.size, object.home.has_value()});
  }
  Executor executor(*tiers.store, *tiers.compute);
  std::vector<uint64_t> digests(program.trace.operations.size() * static_cast<size_t>(repeats));
  scheduler::CompileInput input;
  input.trace = &program.trace;
  input.objects = &program.objects;
  input.budgets = {device, host, Bytes(kSlot)};
  for (int r = 0; r < repeats; ++r) {
    const scheduler::Schedule schedule = policy.compile(input);
    EXPECT_EQ(scheduler::check_schedule(input, schedule), std::vector<std::string>());
    const size_t base = program.trace.operations.size() * static_cast<size_t>(r);
    const auto body = [&](uint32_t number, UseBytes uses) {
      const auto& operation = program.trace.operations[number];
      std::vector<std::span<std::byte>> spans(uses.begin(), uses.end());
      uint64_t* digest = &digests[base + number];
      if (operation.lane == Lane::compute) {
        tiers.compute->run_on_host([&operation, number, spans = std::move(spans), digest] {
          mix(operation, number, spans, *digest);
        });
      } else {
        mix(operation, number, spans, *digest);
      }
    };
    const RunReport report = executor.run(program.trace, schedule, body, true);
    const TimeSplit& split = report.split;
    EXPECT_NEAR(split.compute + split.cpu_optimizer + split.nvme_read + split.nvme_write +
                    split.host_to_device + split.device_to_host + split.other,
                split.total, 1e-6);
    check_record(input, schedule, report);
    check_levels(input, schedule, *report.record);
    input.initial = schedule.final;
  }
  return digests;
}

struct Case {
  bool has_device;
  aio::BackendKind backend;
  bool optimal;
  bool has_late_ends = false;
};

class ExecutorRandomPrograms : public testing::TestWithParam<Case> {};

TEST_P(ExecutorRandomPrograms, EveryOperationSeesWhatASequentialRunSees) {
  const Case& c = GetParam();
  const auto policy = c.optimal ? scheduler::make_optimal_policy() : scheduler::make_lru_policy();
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed, 17);
    const Program program = random_program(random, c.has_device);
    const Bytes device = c.has_device ? scheduler::minimum_device_budget(
                                            program.trace, program.objects, Bytes(kSlot)) +
                                            Bytes(kSlot * static_cast<int64_t>(random.below(4)))
                                      : Bytes(0);
    const Bytes host =
        scheduler::minimum_host_budget(program.trace, program.objects, device, Bytes(kSlot)) +
        Bytes(kSlot * static_cast<int64_t>(random.below(4)));
    Tiers tiers(device, host, test::io_engine(c.backend));
    if (c.has_late_ends) {
      tiers.down = std::make_unique<test::LateStream>(std::move(tiers.down));
      tiers.make_store();
    }
    const int repeats = 2;
    ASSERT_EQ(executed_digests(program, repeats, tiers, *policy, device, host),
              sequential_digests(program, repeats));
    EXPECT_LE(tiers.host_arena.high_water(), host);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExecutorRandomPrograms,
                         testing::Values(Case{true, aio::BackendKind::io_uring, true},
                                         Case{true, aio::BackendKind::thread_pool, true},
                                         Case{true, aio::BackendKind::io_uring, false},
                                         Case{true, aio::BackendKind::io_uring, true, true},
                                         Case{true, aio::BackendKind::io_uring, false, true},
                                         Case{false, aio::BackendKind::io_uring, true},
                                         Case{false, aio::BackendKind::thread_pool, false}));

/// Operations of one object that lives inside the trace.
class ExecutorOnOneObject : public testing::Test {
 protected:
  ExecutorOnOneObject()
      : tiers_(Bytes(0), Bytes(kSlot * 8), test::io_engine(aio::BackendKind::thread_pool)) {
    program_.objects.push_back({"a", Bytes(kSlot), Tier::host, std::nullopt});
    tiers_.store->add({"a", Bytes(kSlot), false});
  }

  RunReport run(const OperationBody& body) {
    scheduler::CompileInput input;
    input.trace = &program_.trace;
    input.objects = &program_.objects;
    input.budgets = {Bytes(0), Bytes(kSlot * 8), Bytes(kSlot)};
    const auto schedule = scheduler::make_optimal_policy()->compile(input);
    Executor executor(*tiers_.store, *tiers_.compute);
    return executor.run(program_.trace, schedule, body, true);
  }

  Program program_;
  Tiers tiers_;
};

class ExecutorErrors : public ExecutorOnOneObject {
 protected:
  /// Runs one operation of the given lane that throws.
  void run_throwing(Lane lane) {
    program_.trace.operations.push_back(
        {"bad", lane, {{ObjectId{0}, Tier::host, Access::write, true}}, 0});
    run([](uint32_t, UseBytes) { throw InputError("bad operation"); });
  }
};

TEST_F(ExecutorErrors, ErrorOfACpuOperationIsRethrown) {
  EXPECT_THROW(run_throwing(Lane::cpu_optimizer), InputError);
}

TEST_F(ExecutorErrors, ErrorOfAComputeOperationIsRethrown) {
  EXPECT_THROW(run_throwing(Lane::compute), InputError);
}

class ExecutorChain : public ExecutorOnOneObject {
 protected:
  static constexpr uint32_t kOperations = 6;

  /// Every operation works on what the one before has left.
  ExecutorChain() {
    for (uint32_t i = 0; i < kOperations; ++i) {
      program_.trace.operations.push_back(
          {"link",
           Lane::compute,
           {{ObjectId{0}, Tier::host, i == 0 ? Access::write : Access::update,
             i + 1 == kOperations}},
           1e-5,
           true});
    }
  }
};

TEST_F(ExecutorChain, AFewOperationsArePostedWhileAnEarlierOneRuns) {
  std::promise<void> third_is_posted;
  std::atomic<uint32_t> ended = 0;
  std::vector<uint32_t> ahead;
  const RunReport report = run([&](uint32_t number, UseBytes) {
    ahead.push_back(number - ended);
    if (number == 2) {
      third_is_posted.set_value();
    }
    tiers_.compute->run_on_host([&, number] {
      if (number == 0) {
        const auto limit = std::chrono::seconds(30);
        EXPECT_EQ(third_is_posted.get_future().wait_for(limit), std::future_status::ready);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++ended;
    });
  });
  EXPECT_EQ(ahead.size(), kOperations);
  EXPECT_LE(*std::max_element(ahead.begin(), ahead.end()), 2U);
  for (const double seconds : report.operation_seconds) {
    EXPECT_GE(seconds, 0.002) << "counted from the end of the one before";
  }
}

TEST_F(ExecutorChain, NothingIsPostedBehindAnOperationThatCouldNotBePosted) {
  std::vector<uint32_t> posted;
  const auto body = [&](uint32_t number, UseBytes) {
    posted.push_back(number);
    if (number == 1) {
      throw InputError("bad operation");
    }
    tiers_.compute->run_on_host([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  };
  EXPECT_THROW(run(body), InputError);
  EXPECT_EQ(posted, (std::vector<uint32_t>{0, 1}));
}

TEST_F(ExecutorChain, AnOperationThatFailsOnTheStreamIsTheLastThatRuns) {
  std::atomic<uint32_t> ran = 0;
  const auto body = [&](uint32_t number, UseBytes) {
    tiers_.compute->run_on_host([&ran, number] {
      ++ran;
      if (number == 1) {
        throw InputError("bad operation");
      }
    });
  };
  EXPECT_THROW(run(body), InputError);
  EXPECT_EQ(ran, 2U);
}

}  // namespace
}  // namespace headrace::engine
