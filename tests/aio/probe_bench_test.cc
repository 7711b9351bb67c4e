#include "aio/probe_bench.h"

#include <gmock/gmock.h>

#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using ::testing::HasSubstr;

IoBenchOptions small(const TestFolder& folder) {
  IoBenchOptions options;
  options.folders = {folder.path()};
  options.io_size = kMiB + Bytes(4096);
  options.block_size = kKiB * 256;
  options.queue_depth = 4;
  options.memory_limit = kMiB * 64;
  options.loops = 1;
  options.validate = true;
  return options;
}

TEST(IoBench, EveryCombinationReadsWhatItWrote) {
  const TestFolder folder;
  for (const bool read : {false, true}) {
    for (const bool in_batches : {false, true}) {
      for (const bool new_file : {false, true}) {
        IoBenchOptions options = small(folder);
        options.read = read;
        options.in_batches = in_batches;
        options.new_file_each_loop = new_file;
        options.tasks_per_folder = 2;
        const IoBenchReport report = run_io_bench(options);
        EXPECT_EQ(report.loops.size(), 1U);
        EXPECT_EQ(report.tasks, 2);
        for (const IoBenchLoop& loop : report.loops) {
          EXPECT_GT(loop.task, 0.0);
          EXPECT_GE(loop.end_to_end, loop.task);
        }
        EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
      }
    }
  }
}

TEST(IoBench, WarmupCountsWhenAsked) {
  const TestFolder folder;
  IoBenchOptions options = small(folder);
  options.warmup_loops = 3;
  options.count_warmup = true;
  EXPECT_EQ(run_io_bench(options).loops.size(), 4U);
}

TEST(IoBench, LinesHaveTheMeaningOfDsIo) {
  IoBenchReport report;
  report.read = true;
  report.io_size = kGiB;
  report.tasks = 2;
  report.loops = {{.task = 0.5, .end_to_end = 1.0}, {.task = 1.5, .end_to_end = 3.0}};
  const std::string text = render(report);
  EXPECT_THAT(text, HasSubstr("Task Read Latency = 1.000000 sec\n"));
  EXPECT_THAT(text, HasSubstr("Task Read Speed = 2.0000 GB/sec\n"));
  EXPECT_THAT(text, HasSubstr("E2E Read Latency = 2.000000 sec\n"));
  EXPECT_THAT(text, HasSubstr("E2E Read Speed = 1.0000 GB/sec\n"));
  EXPECT_THAT(text, HasSubstr("2^30"));
}

TEST(IoBench, RefusesWhatDoesNotFit) {
  const TestFolder folder;
  IoBenchOptions options = small(folder);
  options.memory_limit = kMiB * 2;  // validation needs twice the size
  EXPECT_THROW(run_io_bench(options), CapacityError);
  options = small(folder);
  options.io_size = kGiB * (int64_t{1} << 20);
  options.memory_limit = options.io_size * 4;
  EXPECT_THROW(run_io_bench(options), CapacityError);
  options = small(folder);
  options.io_size = Bytes(12345);
  EXPECT_THROW(run_io_bench(options), InputError);
  options = small(folder);
  options.folders = {};
  EXPECT_THROW(run_io_bench(options), InputError);
  options = small(folder);
  options.loops = 0;
  EXPECT_THROW(run_io_bench(options), InputError);
  std::atomic<bool> cancelled{true};
  options = small(folder);
  options.cancelled = &cancelled;
  EXPECT_THROW(run_io_bench(options), InterruptedError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace headrace::aio
