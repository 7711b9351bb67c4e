#include "aio/probe_fio.h"

#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "aio/probe_storage.h"
#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::string report(int error, double read, double write) {
  return fmt::format(
      R"({{"jobs":[{{"error":{},"read":{{"bw_bytes":{}}},"write":{{"bw_bytes":{}}}}}]}})", error,
      read, write);
}

/// A program in place of fio.
std::string script(const TestFolder& folder, const std::string& text) {
  const std::string path = folder.file("program");
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

FioJob job() {
  return {.kind = LoadKind::mixed,
          .path = "/some/file",
          .file_size = kMiB * 64,
          .block_size = kMiB,
          .queue_depth = 16,
          .seconds = 0.5};
}

TEST(ProbeFio, ArgumentsSayTheSameLoad) {
  const std::vector<std::string> arguments = fio_arguments(job());
  for (const char* expected :
       {"--rw=rw", "--rwmixread=50", "--bs=1048576", "--iodepth=16", "--size=67108864",
        "--filename=/some/file", "--direct=1", "--allow_file_create=0", "--runtime=500ms"}) {
    EXPECT_THAT(arguments, Contains(expected));
  }
}

TEST(ProbeFio, ReportsAreRead) {
  EXPECT_EQ(parse_fio("fio: a note\n" + report(0, 1.5e9, 0.5e9)).rate, 2e9);
  EXPECT_THAT(parse_fio(report(5, 0, 0)).refused, HasSubstr("Input/output error"));
  EXPECT_THAT(parse_fio("nonsense").refused, HasSubstr("nonsense"));
  EXPECT_NE(parse_fio("{\"jobs\":[]}").refused, "");
}

TEST(ProbeFio, AProgramRunsWithHugePagesAndItsFailureIsToldNotThrown) {
  const TestFolder folder;
  const std::string good =
      script(folder,
             "test \"$GLIBC_TUNABLES\" = glibc.malloc.hugetlb=1 && echo '" + report(0, 3, 4) + "'");
  const FioRun run = run_fio(job(), nullptr, good);
  EXPECT_EQ(run.refused, "");
  EXPECT_EQ(run.rate, 7);
  const std::string bad = script(folder, "echo no such engine >&2; exit 1");
  EXPECT_THAT(run_fio(job(), nullptr, bad).refused, HasSubstr("no such engine"));
  EXPECT_THAT(run_fio(job(), nullptr, folder.file("missing")).refused,
              HasSubstr("apt-get install"));
}

TEST(ProbeFio, CancelEndsTheProgram) {
  const TestFolder folder;
  const std::string slow = script(folder, "exec sleep 100");
  std::atomic<bool> cancelled{false};
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    cancelled = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run_fio(job(), &cancelled, slow), InterruptedError);
  stopper.join();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20.0);
}

TEST(ProbeFio, ComparisonAlternatesAndTakesMedians) {
  std::string order;
  const auto ours = [&](LoadKind) {
    order += 'o';
    return 30.0;
  };
  const auto theirs = [&](LoadKind kind) {
    order += 'f';
    return FioRun{.refused = {}, .rate = kind == LoadKind::read ? 20.0 : 60.0};
  };
  const FioComparison comparison = compare_with_fio(ours, theirs, 2);
  EXPECT_EQ(order, "fofofofofofo");
  ASSERT_EQ(comparison.rows.size(), 3U);
  EXPECT_EQ(comparison.rows[0].ratio(), 1.5);
  EXPECT_EQ(comparison.rows[2].ratio(), 0.5);
  const auto refused = [](LoadKind) { return FioRun{.refused = "none here", .rate = 0}; };
  EXPECT_EQ(compare_with_fio(ours, refused, 2).refused, "none here");
}

}  // namespace
}  // namespace headrace::aio
