#include "engine/trace_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace headrace::engine {
namespace {

using nlohmann::json;
using scheduler::Lane;
using testing::ElementsAre;

TimelineTitle title() {
  TimelineTitle title;
  title.name = "a \"run\"";
  title.device = {kMiB, kKiB};
  title.host = {kMiB * 2, Bytes(0)};
  return title;
}

/// Three reads, of which two overlap at any time, one operation and a commit.
StepTimeline step(int64_t number, std::chrono::steady_clock::time_point begin) {
  TimelineRecorder recorder(number, begin);
  scheduler::Trace trace;
  trace.operations.push_back({"forward", Lane::compute, {}, 0});
  const std::vector<scheduler::ObjectFacts> objects = {{"a", kKiB * 4, Tier::nvme, Tier::nvme},
                                                       {"b", kKiB * 8, Tier::nvme, Tier::nvme},
                                                       {"c\n", kKiB * 12, Tier::nvme, Tier::nvme}};
  scheduler::Schedule schedule;
  for (uint32_t i = 0; i < 3; ++i) {
    schedule.actions.emplace_back();
    schedule.actions.back().kind = scheduler::ActionKind::transfer;
    schedule.actions.back().object = ObjectId{i};
  }
  schedule.actions.emplace_back();
  schedule.actions.back().kind = scheduler::ActionKind::operation;
  RunRecord record;
  record.start = begin + std::chrono::milliseconds(1);
  record.spans = {{0, Lane::nvme_read, 0, 0.002},
                  {1, Lane::nvme_read, 0.001, 0.003},
                  {2, Lane::nvme_read, 0.002, 0.004},
                  {3, Lane::compute, 0.003, 0.005}};
  record.charges = {{Lane::nvme_read, 0, 0.003}, {Lane::compute, 0.003, 0.005}};
  record.levels = {{Tier::device, Bytes(0), 0}, {Tier::host, kKiB * 4, 0.001}};
  recorder.add_run(record, trace, schedule, objects);
  recorder.add_commit(begin + std::chrono::milliseconds(7), begin + std::chrono::milliseconds(9));
  return std::move(recorder).finish(0.010);
}

json parse(const std::string& text) {
  return json::parse(text);
}

/// Events of a phase whose `key` is `value`.
std::vector<json> select(const json& file, const std::string& phase, const char* key,
                         const json& value) {
  std::vector<json> events;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == phase && event.value(key, json()) == value) {
      events.push_back(event);
    }
  }
  return events;
}

std::string text_of(const StepTimeline& timeline) {
  TraceEventText text(title());
  return text.head() + ",\n" + text.step(timeline) + TraceEventText::tail();
}

TEST(TimelineRecorder, WhatNothingIsChargedToIsOther) {
  const StepTimeline timeline = step(1, {});
  std::vector<std::optional<Lane>> causes;
  double until = 0;
  for (const Charge& charge : timeline.charges) {
    EXPECT_DOUBLE_EQ(charge.begin, until);
    until = charge.end;
    causes.push_back(charge.lane);
  }
  EXPECT_DOUBLE_EQ(until, 0.010);
  EXPECT_THAT(causes, ElementsAre(std::nullopt, Lane::nvme_read, Lane::compute, std::nullopt,
                                  Lane::nvme_write, std::nullopt));
  const TimeSplit split = timeline.split();
  EXPECT_NEAR(split.nvme_read, 0.003, 1e-12);
  EXPECT_NEAR(split.compute, 0.002, 1e-12);
  EXPECT_NEAR(split.nvme_write, 0.002, 1e-12);
  EXPECT_NEAR(split.other, 0.003, 1e-12);
  EXPECT_NEAR(split.total, 0.010, 1e-12);
}

TEST(TraceEvents, TransfersInFlightAtOnceAreOnSeveralTracks) {
  const json file = parse(text_of(step(1, {})));
  const auto reads = select(file, "X", "cat", "nvme_read");
  ASSERT_EQ(reads.size(), 3U);
  EXPECT_EQ(reads[0]["tid"], reads[2]["tid"]);  // free again when the third begins
  EXPECT_NE(reads[0]["tid"], reads[1]["tid"]);
  const auto names = select(file, "M", "name", "thread_name");
  const auto name_of = [&](const json& track) {
    for (const json& name : names) {
      if (name["tid"] == track) {
        return name["args"]["name"].get<std::string>();
      }
    }
    return std::string();
  };
  EXPECT_EQ(name_of(reads[0]["tid"]), "nvme read");
  EXPECT_EQ(name_of(reads[1]["tid"]), "nvme read 2");
  EXPECT_EQ(reads[2]["name"], "c\n");
  EXPECT_EQ(reads[1]["args"]["bytes"], 8192);
  EXPECT_DOUBLE_EQ(reads[1]["ts"].get<double>(), 2000);  // microseconds
  EXPECT_DOUBLE_EQ(reads[1]["dur"].get<double>(), 2000);
}

TEST(TraceEvents, CountersHoldMemoryAndTransfersInFlight) {
  const json file = parse(text_of(step(1, {})));
  EXPECT_EQ(file["otherData"]["budgets"], json({{"device", 1 << 20}, {"host", 2 << 20}}));
  const auto device = select(file, "C", "name", "device memory of 1.00 MiB");
  ASSERT_EQ(device.size(), 1U);
  EXPECT_EQ(device[0]["args"], json({{"used", 1024}, {"free", (1 << 20) - 1024}}));
  std::vector<int> reads;
  for (const json& event : select(file, "C", "name", "nvme transfers in flight")) {
    reads.push_back(event["args"]["read"]);
  }
  EXPECT_THAT(reads, ElementsAre(1, 2, 2, 1, 0, 0, 0));  // the last two are the commit's
}

TEST(TraceEventFile, IsWholeAfterEachStep) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/steps.json";
  const auto read = [&] {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return parse(text.str());
  };
  TraceEventFile file(path, title());
  EXPECT_TRUE(select(read(), "X", "cat", "step").empty());
  const std::chrono::steady_clock::time_point begin{std::chrono::hours(5)};
  file.write(step(3, begin));
  EXPECT_EQ(select(read(), "X", "cat", "step").size(), 1U);
  file.write(step(4, begin + std::chrono::milliseconds(25)));
  const auto steps = select(read(), "X", "cat", "step");
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_DOUBLE_EQ(steps[0]["ts"].get<double>(), 0);
  EXPECT_DOUBLE_EQ(steps[1]["ts"].get<double>(), 25000);
  EXPECT_EQ(select(read(), "M", "name", "thread_name").size(), 6U);  // each once
  EXPECT_THROW(TraceEventFile(folder.path() + "/missing/steps.json", title()), IoError);
}

}  // namespace
}  // namespace headrace::engine
