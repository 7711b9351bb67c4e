// Submission modes and the adaptive depth, as far as an engine shows them.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>

#include "aio/probe_storage.h"
#include "tests/aio/test_disk.h"
#include "tests/support/temporary_folder.h"

namespace headrace::aio {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBlock = 4096;

class Submission : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!uring_refusal().empty()) {
      GTEST_SKIP() << "io_uring is refused here: " << uring_refusal();
    }
  }
  static IoEngineOptions options(SubmissionMode mode, bool direct) {
    IoEngineOptions options;
    options.submission = mode;
    options.direct = direct;
    options.block_size = Bytes(2 * kBlock);
    options.queue_depth = 32;
    return options;
  }
  TestFolder folder_;
};

TEST_F(Submission, DescriptionNamesTheMode) {
  EXPECT_THAT(IoEngine::create(options(SubmissionMode::interrupt, true))->description(),
              HasSubstr(", interrupt"));
  // Every kernel with io_uring has these two; whether the device can poll shows with a transfer.
  EXPECT_THAT(IoEngine::create(options(SubmissionMode::sq_poll, true))->description(),
              HasSubstr(", sq_poll"));
  EXPECT_THAT(IoEngine::create(options(SubmissionMode::io_poll, true))->description(),
              HasSubstr(", io_poll"));
}

TEST_F(Submission, RefusedPollingLosesNoRequest) {
  // The kernel refuses to poll for files that are not open for direct I/O, on any device.
  const auto engine = IoEngine::create(options(SubmissionMode::io_poll, false));
  const FileId file = engine->open(folder_.file("buffered"), true);
  const TestMemory written(512 * kBlock);
  const TestMemory read(512 * kBlock);
  fill_random(written.span(), 4);
  engine->register_memory(written.span());
  const auto send_all = [&](IoOperation operation, const TestMemory& memory) {
    std::vector<Completion> flying;
    for (size_t at = 0; at < memory.size(); at += 8 * kBlock) {
      flying.push_back(engine->submit(make_request(operation, file, static_cast<int64_t>(at),
                                                   memory.span().subspan(at, 8 * kBlock))));
    }
    when_all(flying).wait();
  };
  send_all(IoOperation::write, written);
  send_all(IoOperation::read, read);
  EXPECT_EQ(std::memcmp(written.data(), read.data(), read.size()), 0);
  EXPECT_THAT(engine->description(), HasSubstr(", interrupt"));
  EXPECT_EQ(engine->statistics().bytes_read, 512 * kBlock);
}

TEST_F(Submission, PollingEngineSleepsWhenNothingIsInFlight) {
  const auto engine = IoEngine::create(options(SubmissionMode::io_poll, true));
  const auto cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

/// Reads that the device of a file has ended since the system started; nothing where it has no
/// block device.
std::optional<int64_t> device_reads(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  std::ifstream in(
      fmt::format("/sys/dev/block/{}:{}/stat", major(status.st_dev), minor(status.st_dev)));
  int64_t reads = 0;
  return in >> reads ? std::optional(reads) : std::nullopt;
}

TEST_F(Submission, LargeNeighboursReachTheDeviceApart) {
  const test::TemporaryFolder folder;  // on a real file system
  const std::string path = folder / "file";
  constexpr int64_t kPart = 1 << 20;
  constexpr int kParts = 64;
  IoEngineOptions large = options(SubmissionMode::interrupt, true);
  large.block_size = Bytes(kPart);
  const auto engine = IoEngine::create(large);
  const FileId file = engine->open(path, true);
  if (!device_reads(path) || engine->description().find("O_DIRECT") == std::string::npos) {
    GTEST_SKIP() << "no block device, or no direct I/O, under " << path;
  }
  // On huge pages: a joined request of small ones has too many pieces.
  const HugeMemory memory(Bytes(kParts * kPart));
  engine->register_memory(memory.bytes());
  engine->submit(make_request(IoOperation::write, file, 0, memory.bytes())).wait();
  const int64_t written = *device_reads(path);
  engine->submit(make_request(IoOperation::read, file, 0, memory.bytes())).wait();
  // Others may add to the count; joined by the kernel they are a third.
  EXPECT_GE(*device_reads(path) - written, kParts);
}

/// Counts parts in flight.
class CountingBackend : public SimulatedBackend {
 public:
  CountingBackend(std::shared_ptr<SimulatedDisk> disk, std::atomic<int>& most)
      : SimulatedBackend(std::move(disk)), most_(most) {}
  void submit(std::span<const PartRequest> parts) override {
    in_flight_ += static_cast<int>(parts.size());
    most_ = std::max(most_.load(), in_flight_);
    SimulatedBackend::submit(parts);
  }
  size_t reap(std::span<PartCompletion> ready) override {
    const size_t count = SimulatedBackend::reap(ready);
    in_flight_ -= static_cast<int>(count);
    return count;
  }

 private:
  int in_flight_ = 0;
  std::atomic<int>& most_;
};

/// The most parts in flight while reads of a disk with latency are asked for as fast as they go.
int most_in_flight(bool adaptive, double seconds) {
  IoEngineOptions options;
  options.queue_depth = 4;
  options.block_size = Bytes(kBlock);
  options.adaptive_depth = adaptive;
  std::atomic<int> most{0};
  const auto disk = std::make_shared<SimulatedDisk>(SimulatedDiskOptions{.delay_us_max = 2000});
  const auto engine =
      create_engine_with_backend(std::make_unique<CountingBackend>(disk, most), options);
  const FileId file = engine->open("disk", true);
  engine->allocate(file, Bytes(64 * kBlock));
  const TestMemory memory(64 * kBlock);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Completion previous = Completion::done();
  while (std::chrono::steady_clock::now() < end) {
    const Completion next = engine->submit(make_request(IoOperation::read, file, 0, memory.span()));
    previous.wait();
    previous = next;
  }
  previous.wait();
  return most;
}

TEST(AdaptiveDepth, GrowsWhileItBringsRateAndKeepsItsBound) {
  EXPECT_EQ(most_in_flight(false, 0.2), 4);
  EXPECT_EQ(most_in_flight(true, 1.8), 64);
}

}  // namespace
}  // namespace headrace::aio
