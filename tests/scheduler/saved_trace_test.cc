#include "scheduler/saved_trace.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <xxhash.h>

#include "base/error.h"
#include "scheduler/lane_shares.h"
#include "scheduler/liveness.h"
#include "scheduler/lower_bound.h"
#include "support.h"
#include "transformer.h"

namespace headrace::scheduler::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

SavedTrace saved(Case test_case, const Policy& policy, int rounds) {
  SavedTrace trace;
  trace.description = "a case";
  trace.step = "training";
  trace.policy = policy.name();
  trace.trace = test_case.trace;
  trace.objects = test_case.objects;
  trace.budgets = test_case.budgets;
  trace.rates = test_case.rates;
  for (int number = 1; number <= rounds; ++number) {
    SavedRound round;
    round.number = number;
    round.schedule = policy.compile(test_case.input());
    round.predicted_seconds = simulate(test_case.input(), round.schedule).seconds;
    test_case.initial = round.schedule.final;
    trace.rounds.push_back(std::move(round));
  }
  return trace;
}

SavedTrace small_step() {
  Case step = transformer({.layers = 2, .micro_batches = 2});
  step.set_budgets(true, int64_t{4} << 20, int64_t{16} << 20);
  step.place_homes();
  return saved(step, *make_optimal_policy(), 2);
}

/// The file as docs/formats.md describes it.
std::string file_of(uint64_t format, uint64_t length, const std::string& record) {
  std::string bytes("HRTRACE\0", 8);
  for (const uint64_t number :
       {format, length, uint64_t{XXH3_64bits(record.data(), record.size())}}) {
    for (int i = 0; i < 8; ++i) {
      bytes.push_back(static_cast<char>(number >> (8 * i)));
    }
  }
  return bytes + record;
}

std::string refusal(const std::string& bytes) {
  try {
    decode_trace(bytes, "the file");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(SavedTrace, ComesBackEqualAndSound) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed, 11);
    const Case test_case = random_case(random);
    for (const auto& policy : {make_optimal_policy(), make_lru_policy()}) {
      const SavedTrace before = saved(test_case, *policy, 2);
      const SavedTrace after = decode_trace(encode_trace(before), "the file");
      ASSERT_EQ(after, before) << describe(test_case);
      for (const SavedRound& round : after.rounds) {
        EXPECT_THAT(check_schedule(after.input(round), round.schedule), IsEmpty());
        EXPECT_EQ(simulate(after.input(round), round.schedule).seconds, round.predicted_seconds);
      }
    }
  }
}

/// Values that no random trace has.
TEST(SavedTrace, EveryFieldIsKept) {
  SavedTrace trace = small_step();
  trace.trace.name = "step \xc3\xbc";
  trace.description = "a path that is no UTF-8: \xff";
  trace.trace.operations[1].in_order = true;
  trace.trace.operations[2].starts_pass = true;
  trace.rates = {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5};
  trace.rates.nvme_side_by_side = Bytes(85);
  trace.budgets.alignment = Bytes(8192);
  trace.rounds[1].schedule.initial.push_back({ObjectId{1}, Tier::nvme, 0, true});
  EXPECT_EQ(decode_trace(encode_trace(trace), "the file"), trace);
}

TEST(SavedTrace, TheFileIsAsDocumented) {
  const std::string bytes = encode_trace(small_step());
  EXPECT_EQ(bytes, file_of(1, bytes.size() - 32, bytes.substr(32)));
}

TEST(SavedTrace, OtherFilesAreRefused) {
  const std::string record = encode_trace(small_step()).substr(32);
  EXPECT_THAT(refusal(""), HasSubstr("the file is not a saved trace"));
  EXPECT_THAT(refusal("{\"train_batch_size\": 4, \"and\": \"so on, and so on\"}"),
              HasSubstr("not a saved trace"));
  EXPECT_THAT(refusal(file_of(2, record.size(), record)), HasSubstr("format 2"));
  EXPECT_THAT(refusal(file_of(uint64_t{1} << 60, record.size(), record)), HasSubstr("format 115"));
  EXPECT_THAT(refusal(file_of(0, record.size(), record)), HasSubstr("damaged"));
  EXPECT_THAT(refusal(file_of(1, uint64_t{1} << 62, record)), HasSubstr("truncated"));
  EXPECT_THAT(refusal(file_of(1, ~uint64_t{0}, record)), HasSubstr("truncated"));
  EXPECT_THAT(refusal(file_of(1, record.size() - 1, record)), HasSubstr("damaged"));
  EXPECT_THAT(refusal(file_of(1, 0, "")), HasSubstr("no sound trace"));
  EXPECT_THAT(refusal(file_of(1, 3, "\xff\xff\xff")), HasSubstr("damaged"));
}

TEST(SavedTrace, EveryTruncationAndEveryChangedByteIsNoticed) {
  const std::string bytes = encode_trace(small_step());
  for (size_t length = 0; length < bytes.size(); length += length < 64 ? 1 : 13) {
    ASSERT_NE(refusal(bytes.substr(0, length)), "") << length;
  }
  for (size_t at = 0; at < bytes.size(); at += at < 64 ? 1 : 13) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    ASSERT_NE(refusal(changed), "") << at;
  }
}

/// With a checksum that fits, a wrong record is refused, or what it says can be simulated, bounded
/// and checked; nothing else is thrown than errors of the input.
TEST(SavedTrace, RecordsThatLieDoNoHarm) {
  const std::string record = encode_trace(small_step()).substr(32);
  const google::protobuf::LogSilencer silencer;
  int refused = 0;
  int accepted = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed, 12);
    std::string changed = record;
    for (uint64_t change = 0; change <= random.below(3); ++change) {
      changed[random.below(changed.size())] = static_cast<char>(random.below(256));
    }
    try {
      const SavedTrace trace = decode_trace(file_of(1, changed.size(), changed), "the file");
      ++accepted;
      const CompileInput input = trace.input(trace.last());
      const Timeline timeline = simulate(input, trace.last().schedule);
      lane_shares(input, timeline, 10);
      check_schedule(input, trace.last().schedule);
      lower_bound(input);
    } catch (const InputError&) {
      ++refused;
    } catch (const CapacityError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 100);
}

void expect_refused(const std::function<void(SavedTrace&)>& change, const char* why) {
  SavedTrace trace = small_step();
  change(trace);
  EXPECT_THAT(refusal(encode_trace(trace)), HasSubstr(why));
}

TEST(SavedTrace, IndicesAndNumbersOutOfRangeAreRefused) {
  const auto actions = [](SavedTrace& trace) -> std::vector<Action>& {
    return trace.rounds[0].schedule.actions;
  };
  expect_refused([](SavedTrace& t) { t.rounds.clear(); }, "no round");
  expect_refused([](SavedTrace& t) { t.trace.operations[0].uses[0].object = ObjectId{10000}; },
                 "object 10000 is unknown");
  expect_refused([](SavedTrace& t) { t.objects[0].size = Bytes(-1); }, "out of range");
  expect_refused([](SavedTrace& t) { t.objects[0].size = Bytes(int64_t{1} << 62); },
                 "out of range");
  expect_refused([](SavedTrace& t) { t.rates.nvme_read = 0; }, "out of range");
  expect_refused([](SavedTrace& t) { t.rates.nvme_write = std::nan(""); }, "out of range");
  expect_refused([](SavedTrace& t) { t.trace.operations[0].seconds = std::nan(""); },
                 "out of range");
  expect_refused([](SavedTrace& t) { t.budgets.alignment = Bytes(0); }, "alignment");
  expect_refused([](SavedTrace& t) { t.rounds[0].schedule.final[0].object = ObjectId{10000}; },
                 "object 10000 is unknown");
  expect_refused([&](SavedTrace& t) { actions(t)[3].after = {3}; }, "dependencies");
  expect_refused([&](SavedTrace& t) { actions(t)[3].after = {1, 0}; }, "dependencies");
  expect_refused(
      [&](SavedTrace& t) {
        actions(t)[0] = {ActionKind::operation, {}, Tier::nvme, Tier::host, 0, 10000, {}};
      },
      "operation 10000 is unknown");
  expect_refused(
      [&](SavedTrace& t) {
        actions(t)[0] = {ActionKind::transfer, {}, Tier::nvme, Tier::device, 0, 0, {}};
      },
      "do not touch");
}

TEST(LaneShares, AreTheBusyPartsOfEachSlice) {
  Case step;
  const ObjectId object = step.add("o", 1'000'000, Tier::nvme, Tier::nvme);
  step.rates = {.nvme_read = 1e6, .nvme_latency = 0.5};
  step.run("use", Lane::cpu_optimizer, 0.75, {reads(object, Tier::host)});
  step.run("alone", Lane::compute, 0.25, {});
  step.budgets.host = Bytes(1 << 20);
  // Read 0 to 1, there at 1.5, used until 2.25.
  const Schedule schedule = make_lru_policy()->compile(step.input());
  const Timeline timeline = simulate(step.input(), schedule);
  ASSERT_DOUBLE_EQ(timeline.seconds, 2.25);
  const auto shares = lane_shares(step.input(), timeline, 3);  // of 0.75 s
  const auto of = [&](Lane lane) {
    std::vector<double> values;
    for (const LaneShares& slice : shares) {
      values.push_back(slice[static_cast<size_t>(lane)]);
    }
    return values;
  };
  EXPECT_THAT(of(Lane::nvme_read),
              testing::Pointwise(testing::DoubleNear(1e-9), {1.0, 1.0 / 3, 0.0}));
  EXPECT_THAT(of(Lane::cpu_optimizer),
              testing::Pointwise(testing::DoubleNear(1e-9), {0.0, 0.0, 1.0}));
  EXPECT_THAT(of(Lane::compute),
              testing::Pointwise(testing::DoubleNear(1e-9), {1.0 / 3, 0.0, 0.0}));
  EXPECT_THAT(of(Lane::nvme_write), testing::Each(0.0));
}

}  // namespace
}  // namespace headrace::scheduler::test
