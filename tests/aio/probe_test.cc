#include "aio/probe.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

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
          .rates = {.read = rate, .write = rate, .mixed = rate},
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
  EXPECT_EQ(report.points.size(), 5U);
  const ProbePoint& best = report.points[report.best];
  EXPECT_TRUE(best.is_measured);
  EXPECT_GT(best.rates.read, 0.0);
  EXPECT_GT(best.rates.write, 0.0);
  EXPECT_GT(best.rates.mixed, 0.0);
  EXPECT_GT(best.read_latency.p50_ms, 0.0);
  EXPECT_GE(best.read_latency.p99_ms, best.read_latency.p50_ms);
  EXPECT_GE(best.read_latency.p999_ms, best.read_latency.p99_ms);
  ASSERT_EQ(report.modes.size(), 3U);
  EXPECT_FALSE(report.modes[0].is_refused) << report.modes[0].left_out;
  EXPECT_GT(report.duplex, 0.0);
  EXPECT_GT(report.cache.memory_rate, 0.0);
  EXPECT_FALSE(report.storage.key.empty());
  EXPECT_LE(best.in_flight(), options.memory);
  const std::string text = render(report);
  EXPECT_THAT(text, HasSubstr(folder.path()));
  EXPECT_THAT(text, HasSubstr("not measured: 256 MiB in flight, 64.0 MiB of memory allowed"));
  EXPECT_THAT(text, HasSubstr("#"));
  EXPECT_THAT(text, HasSubstr("\nduplex "));
  EXPECT_THAT(text, HasSubstr("\nsubmission       interrupt "));
}

TEST(Probe, AioBlockHasTheKnownKeys) {
  ProbeReport report;
  report.points = {point(kMiB, 32, 50), point(kMiB * 4, 16, 100)};
  report.best = 1;
  const auto block = nlohmann::json::parse(aio_block(report));
  EXPECT_EQ(block, nlohmann::json::parse(R"({"aio": {"block_size": 4194304, "queue_depth": 16,
      "intra_op_parallelism": 1}})"));
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
                .memory = memory.span(),
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

TEST(ProbeLoad, UsesAllOfItsMemoryInTurn) {
  const auto engine =
      create_simulated_engine(std::make_shared<SimulatedDisk>(SimulatedDiskOptions{}), {});
  const FileId file = engine->open("disk", true);
  engine->allocate(file, kMiB * 4);  // zeros
  const TestMemory memory(1 << 20);
  std::fill(memory.span().begin(), memory.span().end(), std::byte{0xAB});
  run_load(*engine, {.kind = LoadKind::read,
                     .file = file,
                     .file_size = kMiB * 4,
                     .block_size = kKiB * 64,
                     .slots = 2,
                     .memory = memory.span(),
                     .seconds = 60,
                     .one_pass = true});
  EXPECT_EQ(std::count(memory.span().begin(), memory.span().end(), std::byte{0xAB}), 0);
}

TEST(Probe, MemoryFileSystemsAreNamed) {
  if (!std::filesystem::exists("/dev/shm")) {
    GTEST_SKIP() << "there is no /dev/shm";
  }
  const TestFolder folder("/dev/shm");
  const ProbeReport report = probe(small_probe(folder));
  EXPECT_FALSE(report.is_direct);
  EXPECT_EQ(report.cache.kind, CacheKind::memory_file_system);
  EXPECT_THAT(render(report), HasSubstr("no O_DIRECT"));
  EXPECT_TRUE(is_empty(folder));
}

TEST(ProbeLoad, SamplesAddUpToWhatWasWritten) {
  SimulatedDiskOptions disk_options;
  disk_options.delay_us_max = 4000;
  const auto engine = create_simulated_engine(std::make_shared<SimulatedDisk>(disk_options), {});
  const FileId file = engine->open("disk", true);
  engine->allocate(file, kMiB * 8);
  const TestMemory memory(1 << 20);
  const LoadResult result = run_load(*engine, {.kind = LoadKind::write,
                                               .file = file,
                                               .file_size = kMiB * 8,
                                               .block_size = kKiB * 64,
                                               .slots = 4,
                                               .memory = memory.span(),
                                               .seconds = 0.25,
                                               .sample_seconds = 0.02});
  ASSERT_GE(result.samples.rates.size(), 12U);
  double sum = 0;
  for (const double rate : result.samples.rates) {
    sum += rate * result.samples.interval_seconds;
  }
  // All but what ended in the last, incomplete interval.
  EXPECT_LE(sum, static_cast<double>(result.bytes) + 0.5);
  EXPECT_GE(sum, static_cast<double>(result.bytes) * 0.7);
}

TEST(ProbeStorage, NamesTheFileSystem) {
  EXPECT_EQ(file_system_of("/proc"), "0x9fa0");
  if (std::filesystem::exists("/dev/shm")) {
    EXPECT_EQ(file_system_of("/dev/shm"), "tmpfs");
  }
  EXPECT_THROW(free_space_of("/no/such/folder"), InputError);
}

TEST(ProbeStorage, ScratchFilesHaveNoName) {
  const TestFolder folder;
  const ScratchFile scratch(folder.path());
  EXPECT_TRUE(is_empty(folder));
  EXPECT_TRUE(std::filesystem::exists(scratch.path()));
}

TEST(ProbeStorage, CachedShareSeesThePageCache) {
  const TestFolder folder;
  const ScratchFile scratch(folder.path());
  {
    std::ofstream file(scratch.path(), std::ios::binary);
    file << std::string(1 << 20, 'x');
  }
  EXPECT_EQ(scratch.cached_share(kMiB), 1.0);
  if (file_system_of(folder.path()) == "tmpfs") {
    return;  // has nowhere to drop to
  }
  scratch.drop_cache();
  EXPECT_EQ(scratch.cached_share(kMiB), 0.0);
}

TEST(ProbeStorage, RandomMemoryHasNoEqualBlocks) {
  HugeMemory memory(kMiB * 8);
  memory.fill_random();
  std::set<std::string> blocks;
  for (int64_t at = 0; at < memory.size().count(); at += 4096) {
    blocks.emplace(reinterpret_cast<const char*>(memory.data() + at), 4096);
  }
  EXPECT_EQ(blocks.size(), static_cast<size_t>(memory.size().count() / 4096));
  HugeMemory other(kMiB * 8);
  other.fill_random(1);
  EXPECT_NE(std::memcmp(memory.data(), other.data(), 4096), 0);
}

}  // namespace
}  // namespace headrace::aio
