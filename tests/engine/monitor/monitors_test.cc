#include "engine/monitor/monitors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "base/error.h"
#include "engine/monitor/csv_files.h"
#include "engine/monitor/event_file.h"
#include "tests/support/temporary_folder.h"

namespace headrace::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

using Curve = std::vector<std::pair<int64_t, double>>;

/// Samples and values by tag, over all files of a folder.
std::map<std::string, Curve> curves_in(const std::string& folder) {
  std::map<std::string, Curve> curves;
  for (const std::string& file : event_files(folder)) {
    for (const auto& event : read_events(file)) {
      for (const auto& value : event.summary().value()) {
        curves[value.tag()].emplace_back(event.step(), value.simple_value());
      }
    }
  }
  for (auto& [tag, curve] : curves) {
    std::sort(curve.begin(), curve.end());
  }
  return curves;
}

// Expected CRCs from an independent bit-by-bit computation: of eight bytes that hold 3, 0x576c35e3;
// of "abc", 0x364b3fb7; masked: ((crc >> 15 | crc << 17) + 0xa282ead8) modulo 2^32.
TEST(EventFile, ARecordIsFramedAsTfRecordsAre) {
  const std::string record = tfrecord("abc");
  ASSERT_EQ(record.size(), 8U + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) {
      value |= static_cast<uint32_t>(static_cast<uint8_t>(record[at + i])) << (8 * i);
    }
    return value;
  };
  EXPECT_EQ(number(8), 0x0e4999b0U);
  EXPECT_EQ(number(15), 0x21f1576eU);
}

TEST(EventFile, HoldsWhatWasWritten) {
  const test::TemporaryFolder folder;
  {
    TensorBoardSink sink(folder / "a/b", "", {}, 0);
    sink.write({{"loss", 1.5, 0}, {"lr", 0, 8}, {"norm", 3, 8}});
    sink.write({{"loss", std::numeric_limits<double>::quiet_NaN(), 8}});
  }
  const auto files = event_files(folder / "a/b");
  ASSERT_EQ(files.size(), 1U);
  const auto events = read_events(files.front());
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_GT(events[0].wall_time(), 1.6e9);
  EXPECT_EQ(events[2].step(), 8);
  EXPECT_EQ(events[2].summary().value_size(), 2) << "points of one place share an event";
  EXPECT_TRUE(events[2].summary().value(0).has_simple_value()) << "0 is a value";
  EXPECT_TRUE(std::isnan(events[3].summary().value(0).simple_value()));
}

TEST(EventFile, ReadsUpToTheDamage) {
  const test::TemporaryFolder folder;
  { TensorBoardSink(folder.path(), "", {}, 0).write({{"a", 1, 1}, {"a", 2, 2}, {"a", 3, 3}}); }
  const std::string file = event_files(folder.path()).front();
  const std::string whole = text_of(file);
  std::ofstream(file, std::ios::trunc) << whole.substr(0, whole.size() - 1);
  EXPECT_EQ(read_events(file).size(), 3U) << "version and two of three";
  std::string flipped = whole;
  flipped[flipped.size() - 6] ^= 1;
  std::ofstream(file, std::ios::trunc) << flipped;
  EXPECT_EQ(read_events(file).size(), 3U);
  EXPECT_THROW(read_events(folder / "missing"), IoError);
  EXPECT_THROW(read_events(folder.path()), IoError) << "a failure is not the end of the file";
}

const KeepScalar kUpTo16 = [](const std::string& tag, int64_t samples) {
  return tag == "loss" ? samples < 16 : samples <= 16;
};

TEST(EventFile, AResumedRunTakesItsOwnLostStepsAway) {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& run) {
    TensorBoardSink sink(folder.path(), run, {}, 0);
    for (const int64_t before : {0, 8, 16}) {
      sink.write({{"loss", static_cast<double>(before), before},
                  {"lr", static_cast<double>(before), before + 8}});
    }
  };
  write("mine");
  write("other");
  TensorBoardSink resumed(folder.path(), "mine", kUpTo16, 16);
  resumed.write({{"loss", 100, 16}, {"lr", 100, 24}});
  std::map<std::string, Curve> mine;
  for (const std::string& file : event_files(folder.path())) {
    if (file.ends_with(".other")) {
      EXPECT_EQ(read_events(file).size(), 7U) << "another run's file is left alone";
      continue;
    }
    for (const auto& event : read_events(file)) {
      for (const auto& value : event.summary().value()) {
        mine[value.tag()].emplace_back(event.step(), value.simple_value());
      }
    }
  }
  for (auto& [tag, curve] : mine) {
    std::sort(curve.begin(), curve.end());
  }
  EXPECT_THAT(mine["loss"], ElementsAre(Pair(0, 0), Pair(8, 8), Pair(16, 100)));
  EXPECT_THAT(mine["lr"], ElementsAre(Pair(8, 0), Pair(16, 8), Pair(24, 100)));
}

TEST(CsvFiles, AreLaidOutAsDeepSpeeds) {
  const test::TemporaryFolder folder;
  CsvSink sink(folder / "job", "run", {});
  sink.write({{"Train/Samples/train_loss", 2.5, 0}, {"Train/Samples/lr", 0.001, 8}});
  sink.write({{"Train/Samples/train_loss", 2.25, 8}});
  EXPECT_EQ(text_of(folder / "job/Train_Samples_train_loss.csv"),
            "step,train_loss\n0,2.5\n8,2.25\n");
  EXPECT_EQ(text_of(folder / "job/Train_Samples_lr.csv"), "step,lr\n8,0.001\n");
}

TEST(CsvFiles, AResumedRunTakesItsLostRowsAway) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "loss.csv";
  CsvSink(folder.path(), "old", {}).write({{"loss", 9, 50}});
  CsvSink(folder.path(), "mine", {}).write({{"loss", 1, 0}, {"loss", 2, 8}, {"loss", 3, 16}});
  std::ofstream(file, std::ios::app) << "24,4";  // cut off by a kill
  CsvSink(folder.path(), "mine", kUpTo16).write({{"loss", 5, 16}});
  EXPECT_EQ(text_of(file), "step,loss\n50,9\nstep,loss\n0,1\n8,2\n16,5\n");
  // Rows of a run that came between are not ours to take.
  CsvSink(folder.path(), "between", {}).write({{"loss", 7, 99}});
  CsvSink(folder.path(), "mine", kUpTo16).write({{"loss", 6, 16}});
  EXPECT_THAT(text_of(file), HasSubstr("16,5\nstep,loss\n99,7\nstep,loss\n16,6\n"));
}

TEST(CsvFiles, AFileThatCannotBeReadIsNotRewritten) {
  const test::TemporaryFolder folder;
  CsvSink(folder.path(), "mine", {}).write({{"lr", 1, 0}});
  fs::create_directory(folder / "loss.csv");  // opens, and cannot be read
  try {
    CsvSink(folder.path(), "mine", kUpTo16).write({{"loss", 5, 16}});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot read the CSV file"));
    EXPECT_THAT(error.what(), HasSubstr("loss.csv"));
  }
  EXPECT_FALSE(fs::exists(folder / "loss.csv.new"));
}

TEST(Monitors, PutDeepSpeedsTagsWhereDeepSpeedPutsThem) {
  Settings settings;
  settings.batch.train = 8;
  StepReport report;
  report.samples = 16;
  report.loss = 3;
  report.next_learning_rate = 0.5;
  report.next_loss_scale = 1024;
  report.engine.phases = {0.001, 0.002, 0.003};
  std::map<std::string, std::pair<int64_t, double>> points;
  const auto make = [&] {
    points.clear();
    for (const Scalar& scalar : scalars_of(report, settings)) {
      EXPECT_TRUE(points.emplace(scalar.tag, std::pair(scalar.samples, scalar.value)).second);
    }
  };
  make();
  EXPECT_EQ(points.at("Train/Samples/train_loss"), std::pair(int64_t{16}, 3.0));
  EXPECT_EQ(points.at("Train/Samples/lr"), std::pair(int64_t{24}, 0.5));
  EXPECT_FALSE(points.contains("Train/Samples/loss_scale"));
  EXPECT_FALSE(points.contains("Train/Samples/elapsed_time_ms_step"));
  EXPECT_FALSE(points.contains("Headrace/share_of_bound"));
  EXPECT_TRUE(points.contains("Headrace/bytes/nvme_read"));
  settings.dtype = DType::f16;
  settings.wall_clock_breakdown = true;
  report.share_of_bound = 0.9;
  make();
  EXPECT_EQ(points.at("Train/Samples/loss_scale"), std::pair(int64_t{24}, 1024.0));
  EXPECT_DOUBLE_EQ(points.at("Train/Samples/elapsed_time_ms_forward").second, 1);
  EXPECT_DOUBLE_EQ(points.at("Train/Samples/elapsed_time_ms_backward").second, 2);
  EXPECT_DOUBLE_EQ(points.at("Train/Samples/elapsed_time_ms_backward_inner").second, 2);
  EXPECT_EQ(points.at("Train/Samples/elapsed_time_ms_backward_allreduce").second, 0);
  EXPECT_DOUBLE_EQ(points.at("Train/Samples/elapsed_time_ms_step").second, 3);
  EXPECT_DOUBLE_EQ(points.at("Headrace/share_of_bound").second, 0.9);
}

TEST(Monitors, KeepOneCurveOverAResumption) {
  const test::TemporaryFolder folder;
  Settings settings;
  settings.batch.train = 4;
  settings.tensorboard = {true, folder.path(), "tb"};
  settings.csv_monitor = {true, folder.path(), "csv"};
  const auto run = [&](const std::optional<ResumedAt>& resumed, int64_t first, int64_t last) {
    Monitors monitors(settings, "run", resumed);
    for (int64_t samples = first; samples <= last; samples += 4) {
      StepReport report;
      report.samples = samples;
      report.loss = static_cast<double>(samples);
      monitors.write(report);
      monitors.write_evaluation(samples + 4, 1);
    }
  };
  run(std::nullopt, 0, 12);  // killed; the store has the first two steps
  run(ResumedAt{8, false}, 8, 16);
  const auto curves = curves_in(folder / "tb");
  const Curve expected = {{0, 0}, {4, 4}, {8, 8}, {12, 12}, {16, 16}};
  EXPECT_EQ(curves.at("Train/Samples/train_loss"), expected);
  EXPECT_EQ(curves.at("Train/Samples/lr").size(), 5U);
  const Curve validation = {{4, 1}, {12, 1}, {16, 1}, {20, 1}};  // that at 8 was to be made again
  EXPECT_EQ(curves.at("Headrace/validation_loss"), validation);
  EXPECT_EQ(text_of(folder / "csv/Train_Samples_train_loss.csv"),
            "step,train_loss\n0,0\n4,4\n8,8\n12,12\n16,16\n");
}

TEST(Monitors, AFolderThatCannotBeMadeIsAnError) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  Settings settings;
  settings.tensorboard = {true, folder / "file", "job"};
  EXPECT_THROW(Monitors(settings, "", {}), IoError);
  settings.tensorboard.enabled = false;
  settings.csv_monitor = {true, folder / "file", "job"};
  EXPECT_THROW(Monitors(settings, "", {}), IoError);
  settings.tensorboard = {true, folder / "new/board", "job"};
  EXPECT_THROW(Monitors(settings, "", {}), IoError);
  EXPECT_FALSE(fs::exists(folder / "new")) << "a run that is refused leaves nothing";
  settings.csv_monitor.enabled = false;
  Monitors(settings, "", {}).write(StepReport());
  EXPECT_TRUE(fs::exists(folder / "new/board/job"));
}

TEST(CsvFiles, ThoseOfAnotherRunAreItsOwnUntilARowIsWritten) {
  const test::TemporaryFolder folder;
  CsvSink(folder.path(), "old", {}).write({{"loss", 1, 0}});
  { const CsvSink refused(folder.path(), "new", {}); }
  EXPECT_EQ(text_of(folder / "headrace_run"), "old\n");
  CsvSink(folder.path(), "new", {}).write({{"loss", 2, 0}});
  EXPECT_EQ(text_of(folder / "headrace_run"), "new\n");
}

TEST(Monitors, AFileThatCannotBeWrittenIsGivenUp) {
  const test::TemporaryFolder folder;
  Settings settings;
  settings.csv_monitor = {true, folder.path(), "job"};
  Monitors monitors(settings, "", {});
  fs::create_directory(folder / "job/Train_Samples_train_loss.csv");  // where a file should be
  monitors.write(StepReport());
  fs::remove(folder / "job/Train_Samples_train_loss.csv");
  monitors.write(StepReport());
  EXPECT_FALSE(fs::exists(folder / "job/Train_Samples_train_loss.csv"));
}

}  // namespace
}  // namespace headrace::engine
