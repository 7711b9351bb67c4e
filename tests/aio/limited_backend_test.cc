// Rates and latencies of the limiter against arithmetic, over a disk in memory that is much faster.

#include "aio/limited_backend.h"

#include <sys/resource.h>

#include "base/median.h"
#include "base/seconds.h"
#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPart = 128 << 10;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Limits : public ::testing::Test {
 protected:
  void open(const IoLimits& limits) {
    IoEngineOptions options;
    options.block_size = Bytes(kPart);
    options.queue_depth = 16;
    options.limits = limits;
    engine_ =
        create_simulated_engine(std::make_shared<SimulatedDisk>(SimulatedDiskOptions{}), options);
    file_ = engine_->open("limited", true);
    engine_->allocate(file_, Bytes(static_cast<int64_t>(memory_.size())));
  }

  /// Seconds from now to the end of each of `count` requests of `size` bytes, all posted at once.
  std::vector<double> ends(IoOperation operation, int count, size_t size) {
    std::vector<Clock::time_point> times(static_cast<size_t>(count));
    std::vector<Completion> flying;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < count; ++i) {
      flying.push_back(
          engine_->submit(make_request(operation, file_, 0, memory_.span().first(size))));
      flying.back().on_done(
          [&times, i](const std::exception_ptr&) { times[static_cast<size_t>(i)] = Clock::now(); });
    }
    when_all(flying).wait();
    std::vector<double> seconds;
    for (const Clock::time_point time : times) {
      seconds.push_back(seconds_between(begin, time));
    }
    return seconds;
  }

  struct BothSeconds {
    double written = 0;  ///< to the end of the last write
    double read = 0;
  };
  /// Posts `count` writes and then as many reads, all of the memory's size.
  BothSeconds write_and_read(int count) {
    const TestMemory other(memory_.size());
    std::vector<Completion> flying;
    BothSeconds both;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < count; ++i) {
      flying.push_back(engine_->submit(make_request(IoOperation::write, file_, 0, other.span())));
    }
    flying.back().on_done(
        [&](const std::exception_ptr&) { both.written = seconds_between(begin, Clock::now()); });
    both.read = ends(IoOperation::read, count, memory_.size()).back();
    when_all(flying).wait();
    return both;
  }

  TestMemory memory_{1 << 20};
  std::unique_ptr<IoEngine> engine_;
  FileId file_{};
};

TEST_F(Limits, EveryRequestEndsWhenTheRateSays) {
  constexpr int kCount = 40;        // 0.21 s
  constexpr double kLate = 0.5e-3;  // a percent of 50 ms
  for (const IoOperation operation : {IoOperation::read, IoOperation::write}) {
    open(operation == IoOperation::read ? IoLimits{.read_bytes_per_second = 200e6}
                                        : IoLimits{.write_bytes_per_second = 200e6});
    double best = 1;
    for (int attempt = 0; attempt < 10 && best > kLate; ++attempt) {  // other programs may run too
      const std::vector<double> seconds = ends(operation, kCount, memory_.size());
      std::vector<double> late;
      for (int i = 0; i < kCount; ++i) {
        const double expected = (i + 1) * static_cast<double>(memory_.size()) / 200e6;
        late.push_back(seconds[static_cast<size_t>(i)] - expected);
        EXPECT_GE(late.back(), -1e-6) << i;
      }
      best = std::min(best, median(late));
    }
    EXPECT_LT(best, kLate);
  }
}

TEST_F(Limits, ReadsAndWritesDoNotTakeFromEachOther) {
  open({.read_bytes_per_second = 100e6, .write_bytes_per_second = 200e6});
  const BothSeconds both = write_and_read(20);
  const auto bytes = 20 * static_cast<double>(memory_.size());
  EXPECT_NEAR(both.read, bytes / 100e6, 0.05);
  EXPECT_NEAR(both.written, bytes / 200e6, 0.05);
}

TEST_F(Limits, OneLimitForBothIsSharedWhileBothGoOn) {
  // 100 and 200 MB/s alone, together 150: half of each. 20 MiB are written at 100 MB/s, meanwhile
  // 10 read at 50, and the other 10 at 100.
  open({.read_bytes_per_second = 100e6,
        .write_bytes_per_second = 200e6,
        .both_bytes_per_second = 150e6});
  const BothSeconds both = write_and_read(20);
  const auto bytes = 20 * static_cast<double>(memory_.size());
  EXPECT_GE(both.written,
            bytes / 100e6 - 0.03);  // the first writes may begin before the first read
  EXPECT_LT(both.written, bytes / 100e6 + 0.05);
  EXPECT_NEAR(both.read, bytes / 100e6 + bytes / 200e6, 0.05);
}

TEST_F(Limits, LatencyIsAddedOnceWhereTransfersOverlap) {
  open({.read_bytes_per_second = 100e6, .latency = std::chrono::milliseconds(10)});
  const auto bytes = static_cast<double>(memory_.size());
  for (const int count : {1, 10}) {
    const double expected = 0.01 + count * bytes / 100e6;
    const double seconds = ends(IoOperation::read, count, memory_.size()).back();
    EXPECT_GE(seconds, expected - 1e-6);
    EXPECT_LT(seconds, expected + 0.1);  // once per part it would be 0.8 s
  }
}

TEST_F(Limits, AnIdleTimeIsNotMadeUpFor) {
  open({.read_bytes_per_second = 100e6});
  const auto bytes = static_cast<double>(memory_.size());
  ends(IoOperation::read, 1, memory_.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_GE(ends(IoOperation::read, 5, memory_.size()).back(), 5 * bytes / 100e6 - 1e-6);
}

TEST_F(Limits, WaitingCostsNoCpuTime) {
  open({.read_bytes_per_second = 20e6});
  const double before = cpu_seconds();
  const double wall = ends(IoOperation::read, 10, memory_.size()).back();
  EXPECT_GT(wall, 0.5);
  EXPECT_LT(cpu_seconds() - before, 0.1 * wall);
}

TEST_F(Limits, DestructorWaitsForWhatIsInFlight) {
  open({.write_bytes_per_second = 50e6});
  std::vector<Completion> flying;
  for (int i = 0; i < 5; ++i) {
    flying.push_back(engine_->submit(make_request(IoOperation::write, file_, 0, memory_.span())));
  }
  engine_.reset();
  for (const Completion& completion : flying) {
    EXPECT_TRUE(completion.is_done());
    EXPECT_NO_THROW(completion.wait());
  }
}

TEST_F(Limits, AreNamedAndChecked) {
  open({.read_bytes_per_second = 100.0 * (1 << 20)});
  EXPECT_NE(engine_->description().find("reads limited to 100 MiB/s"), std::string::npos)
      << engine_->description();
  EXPECT_EQ(engine_->description().find("writes"), std::string::npos);
  EXPECT_THROW(open({.write_bytes_per_second = -1}), InputError);
}

}  // namespace
}  // namespace headrace::aio
