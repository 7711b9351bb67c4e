#include "aio/probe.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>

#include "aio/probe_load.h"
#include "aio/probe_storage.h"
#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using ::testing::HasSubstr;

bool is_empty(const TestFolder& folder) {
  return std::filesystem::is_empty(folder.path());
}

ProbeOptions small_probe(const TestFolder& folder) {
  ProbeOptions options;
  options.path = folder.path();
  options.file_size = kMiB * 32;
  options.memory = kMiB * 64;
  options.quick = true;
  options.seconds = 1.5;
  options.backend = uring_refusal().empty() ? BackendKind::io_uring : BackendKind::thread_pool;
  return options;
}

ProbePoint point(Bytes block, int depth, double rate) {
  return {.block_size = block,
          .queue_depth = depth,
          .read_rate = rate,
          .write_rate = rate,
          .mixed_rate = rate,
          .is_measured = true};
}

TEST(Probe, MeasuresWithinItsTimeAndLeavesNothing) {
  const TestFolder folder;
  ProbeOptions options = small_probe(folder);
  double last = -1;
  bool ascending = true;
  options.progress = [&](const ProbeProgress& progress) {
    ascending = ascending && progress.done >= last;
    last = progress.done;
  };
  const auto begin = std::chrono::steady_clock::now();
  const ProbeReport report = probe(options);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 15.0);
  EXPECT_TRUE(is_empty(folder));
  EXPECT_TRUE(ascending);
  EXPECT_EQ(last, 1.0);
  EXPECT_EQ(report.points.size(), 4U);
  const ProbePoint& best = report.points[report.best];
  EXPECT_TRUE(best.is_measured);
  EXPECT_GT(best.read_rate, 0.0);
  EXPECT_GT(best.write_rate, 0.0);
  EXPECT_GT(best.mixed_rate, 0.0);
  EXPECT_GE(best.read_latency.p99_ms, best.read_latency.p50_ms);
  EXPECT_EQ(report.best, 0U);  // the only one with no more than 64 MiB in flight
  const std::string text = render(report);
  EXPECT_THAT(text, HasSubstr(folder.path()));
  EXPECT_THAT(text, HasSubstr("not measured: 256 MiB in flight, 64.0 MiB of memory allowed"));
  EXPECT_THAT(text, HasSubstr("#"));
}

TEST(Probe, BestPointPrefersFewBytesInFlightAmongEquals) {
  EXPECT_EQ(best_point({point(kMiB, 32, 100), point(kMiB, 128, 103), point(kMiB, 8, 60)}), 0U);
  EXPECT_EQ(best_point({point(kMiB, 32, 90), point(kMiB, 128, 100)}), 1U);
  ProbePoint unmeasured = point(kMiB, 8, 1000);
  unmeasured.is_measured = false;
  EXPECT_EQ(best_point({unmeasured, point(kMiB, 128, 1)}), 1U);
  EXPECT_THROW(best_point({unmeasured}), CapacityError);
}

TEST(Probe, AioBlockHasTheKnownKeys) {
  ProbeReport report;
  report.points = {point(kMiB, 32, 50), point(kMiB * 4, 16, 100)};
  report.best = 1;
  const auto block = nlohmann::json::parse(aio_block(report));
  EXPECT_EQ(block, nlohmann::json::parse(R"({"aio": {"block_size": 4194304, "queue_depth": 16,
      "intra_op_parallelism": 1, "single_submit": false, "overlap_events": true}})"));
}

TEST(Probe, ShortOfSpaceIsSaidBefore) {
  const TestFolder folder;
  ProbeOptions options = small_probe(folder);
  options.file_size = kGiB * (int64_t{1} << 20);
  EXPECT_THROW(probe(options), CapacityError);
  EXPECT_TRUE(is_empty(folder));
}

TEST(Probe, BadOptionsAreInputErrors) {
  const TestFolder folder;
  ProbeOptions options = small_probe(folder);
  options.path = folder.file("missing");
  EXPECT_THROW(probe(options), InputError);
  options = small_probe(folder);
  options.file_size = Bytes(12345);
  EXPECT_THROW(probe(options), InputError);
  options = small_probe(folder);
  options.memory = kMiB;
  EXPECT_THROW(probe(options), InputError);
  options = small_probe(folder);
  options.seconds = -1;
  EXPECT_THROW(probe(options), InputError);
}

TEST(Probe, CancelStopsSoonAndLeavesNothing) {
  const TestFolder folder;
  ProbeOptions options = small_probe(folder);
  options.seconds = 60;
  std::atomic<bool> cancelled{false};
  options.cancelled = &cancelled;
  options.progress = [&](const ProbeProgress& progress) { cancelled = progress.done > 0; };
  EXPECT_THROW(probe(options), InterruptedError);
  EXPECT_TRUE(is_empty(folder));
}

TEST(ProbeLoad, ErrorsAreThrownAfterTheLastEnd) {
  SimulatedDiskOptions disk_options;
  disk_options.delay_us_max = 1000;
  const auto disk = std::make_shared<SimulatedDisk>(disk_options);
  const auto engine = create_simulated_engine(disk, {});
  const FileId file = engine->open("disk", true);
  engine->allocate(file, kMiB * 4);
  const TestMemory memory(4 << 20);
  LoadPlan plan{.kind = LoadKind::mixed,
                .file = file,
                .file_size = kMiB * 4,
                .block_size = kKiB * 256,
                .slots = 16,
                .memory = memory.data(),
                .seconds = 0.2};
  const LoadResult good = run_load(*engine, plan);
  EXPECT_GT(good.rate(), 0.0);
  EXPECT_FALSE(good.read_ms.empty());
  EXPECT_FALSE(good.write_ms.empty());
  disk->inject({.operation = IoOperation::write, .skip = 5, .error_number = EIO});
  EXPECT_THROW(run_load(*engine, plan), IoError);
  plan.kind = LoadKind::write;
  plan.one_pass = true;
  plan.seconds = 60;
  const LoadResult pass = run_load(*engine, plan);
  EXPECT_EQ(pass.blocks_sent, 16);
  EXPECT_EQ(pass.bytes, 4 << 20);
}

TEST(ProbeStorage, NamesTheFileSystem) {
  EXPECT_EQ(file_system_of("/proc"), "0x9fa0");
  if (std::filesystem::exists("/dev/shm")) {
    EXPECT_EQ(file_system_of("/dev/shm"), "tmpfs");
    EXPECT_EQ(device_of("/dev/shm"), "");
  }
  EXPECT_THROW(free_space_of("/no/such/folder"), InputError);
}

}  // namespace
}  // namespace headrace::aio
