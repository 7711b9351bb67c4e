// One suite over all backends: what a client of IoEngine may rely on.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/aio/random_plan.h"
#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

constexpr int64_t kBlock = 4096;

struct Setting {
  BackendKind backend;
  bool direct;
  SubmissionMode submission = SubmissionMode::interrupt;
  bool limited = false;  ///< to rates that parts have to wait for
};

class Conformance : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (GetParam().backend == BackendKind::io_uring && !uring_refusal().empty()) {
      GTEST_SKIP() << "io_uring is refused here: " << uring_refusal();
    }
  }

  static IoEngineOptions options() {
    IoEngineOptions options;
    options.backend = GetParam().backend;
    options.direct = GetParam().direct;
    options.block_size = Bytes(16 * kBlock);
    options.queue_depth = 16;
    options.threads = 4;
    options.submission = GetParam().submission;
    if (GetParam().limited) {
      options.limits = {.read_bytes_per_second = 1e9,
                        .write_bytes_per_second = 0.8e9,
                        .latency = std::chrono::microseconds(100)};
    }
    return options;
  }
  static std::unique_ptr<IoEngine> make(const IoEngineOptions& options) {
    return IoEngine::create(options);
  }
  /// Offsets, lengths and addresses in the random plans are multiples of this.
  static int64_t unit() { return GetParam().direct ? kBlock : 1; }

  TestFolder folder_;
};

TEST_P(Conformance, RandomPlansMatchReferenceArrays) {
  uint64_t seed = 1;
  for (const int depth : {1, 5, 64}) {
    for (const int64_t blocks : {1, 7, 300}) {
      const int files = depth == 5 ? 1 : 3;
      SCOPED_TRACE(fmt::format("depth {} blocks {} files {} seed {}", depth, blocks, files, seed));
      auto chosen = options();
      chosen.queue_depth = depth;
      chosen.block_size = Bytes(blocks * kBlock);
      const auto engine = make(chosen);
      RandomPlan plan(*engine, folder_, files, unit(), seed++);
      plan.round();
      plan.round();
      EXPECT_GT(plan.compared(), 0);
      const IoStatistics statistics = engine->statistics();
      EXPECT_EQ(statistics.bytes_read + statistics.bytes_written, plan.bytes());
    }
  }
}

TEST_P(Conformance, RandomSettingsMatchReferenceArrays) {
  for (uint64_t seed = 100; seed < 103; ++seed) {
    Random random(seed, 1);
    auto chosen = options();
    chosen.queue_depth = static_cast<int>(1 + random.below(100));
    chosen.block_size = Bytes(static_cast<int64_t>(1 + random.below(200)) * kBlock);
    chosen.threads = static_cast<int>(1 + random.below(6));
    chosen.adaptive_depth = random.below(2) == 1;
    const int files = static_cast<int>(1 + random.below(5));
    SCOPED_TRACE(fmt::format("seed {} depth {} block {} files {} adaptive {}", seed,
                             chosen.queue_depth, chosen.block_size, files, chosen.adaptive_depth));
    const auto engine = make(chosen);
    RandomPlan plan(*engine, folder_, files, unit(), seed);
    plan.round();
    plan.round();
    EXPECT_GT(plan.compared(), 0);
  }
}

TEST_P(Conformance, RegisteredMemoryTransfersTheSameBytes) {
  const auto engine = make(options());
  const FileId file = engine->open(folder_.file("registered"), true);
  const TestMemory written(1 << 20);
  const TestMemory read(1 << 20);
  fill_random(written.span(), 3);
  engine->register_memory(written.span());
  engine->register_memory(read.span().subspan(64 * kBlock));  // the rest stays unregistered
  engine->register_memory(written.span());                    // again: no harm
  engine->submit(make_request(IoOperation::write, file, 0, written.span())).wait();
  engine->submit(make_request(IoOperation::read, file, 0, read.span())).wait();
  EXPECT_EQ(std::memcmp(written.data(), read.data(), read.size()), 0);
  EXPECT_FALSE(engine->description().empty());
}

TEST_P(Conformance, ThreadsSubmitAtOnce) {
  const auto engine = make(options());
  constexpr int kThreads = 6;
  constexpr int64_t kShare = 64 * kBlock;
  const FileId file = engine->open(folder_.file("threads"), true);
  engine->allocate(file, Bytes(kThreads * kShare));
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const TestMemory memory(kShare);
      const TestMemory check(kShare);
      const FileId own = engine->open(folder_.file(fmt::format("own{}", thread)), true);
      for (uint64_t round = 0; round < 10; ++round) {
        fill_random(memory.span().first(2 * kBlock), round * 10 + static_cast<uint64_t>(thread));
        std::vector<Completion> flying;
        for (const FileId target : {file, own}) {
          flying.push_back(engine->submit(
              make_request(IoOperation::write, target, thread * kShare, memory.span())));
        }
        when_all(flying).wait();
        engine
            ->submit(make_request(IoOperation::read, round % 2 == 0 ? file : own, thread * kShare,
                                  check.span()))
            .wait();
        good += std::memcmp(memory.data(), check.data(), kShare) == 0 ? 1 : 0;
      }
      engine->sync(own);
      engine->close(own);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, kThreads * 10);
}

TEST_P(Conformance, CallbacksRunOnOneThreadAndMaySubmit) {
  auto chosen = options();
  const TestMemory memory(kBlock);
  std::vector<std::thread::id> ids;
  int left = 100;
  Promise end;
  const auto engine = make(chosen);
  const FileId file = engine->open(folder_.file("chain"), true);
  engine->submit(make_request(IoOperation::write, file, 0, memory.span())).wait();
  std::function<void(std::exception_ptr)> next = [&](const std::exception_ptr& error) {
    EXPECT_EQ(error, nullptr);
    ids.push_back(std::this_thread::get_id());
    if (--left == 0) {
      end.set_done();
      return;
    }
    engine->submit(make_request(IoOperation::read, file, 0, memory.span())).on_done(next);
  };
  next(nullptr);
  end.completion().wait();
  // A request that ended before on_done() calls back here, at once; but from the first call on
  // the engine's thread on, all are made there.
  const auto first = std::find_if(
      ids.begin(), ids.end(), [](std::thread::id id) { return id != std::this_thread::get_id(); });
  EXPECT_EQ(std::count(first, ids.end(), ids.back()), ids.end() - first);
}

TEST_P(Conformance, ReadPastTheEndNamesEverything) {
  const auto engine = make(options());
  const std::string path = folder_.file("short");
  const FileId file = engine->open(path, true);
  engine->allocate(file, Bytes(20 * kBlock));
  const TestMemory memory(32 * kBlock);
  // Parts of 16 blocks: the second part gets 4 of its 16 blocks.
  const IoError error =
      error_of(engine->submit(make_request(IoOperation::read, file, 0, memory.span())));
  EXPECT_EQ(error.where().path, path);
  EXPECT_EQ(error.where().offset, 16 * kBlock);
  EXPECT_EQ(error.where().expected_bytes, 16 * kBlock);
  EXPECT_EQ(error.where().actual_bytes, 4 * kBlock);
  EXPECT_EQ(error.where().error_number, 0);
  EXPECT_FALSE(error.is_retryable());

  const IoError beyond = error_of(engine->submit(
      make_request(IoOperation::read, file, 100 * kBlock, memory.span().first(kBlock))));
  EXPECT_EQ(beyond.where().offset, 100 * kBlock);
  EXPECT_EQ(beyond.where().actual_bytes, 0);
  // The engine is as good as before.
  engine->submit(make_request(IoOperation::read, file, 0, memory.span().first(20 * kBlock))).wait();
}

TEST_P(Conformance, FileEndingInsideABlockIsShort) {
  const auto engine = make(options());
  const FileId file = engine->open(folder_.file("odd"), true);
  engine->allocate(file, Bytes(kBlock + 100));
  const TestMemory memory(2 * kBlock);
  const IoError error =
      error_of(engine->submit(make_request(IoOperation::read, file, 0, memory.span())));
  EXPECT_EQ(error.where().expected_bytes, 2 * kBlock);
  EXPECT_EQ(error.where().actual_bytes, kBlock + 100);
}

TEST_P(Conformance, PositionsBeyondFourGiB) {
  const auto engine = make(options());
  const FileId file = engine->open(folder_.file("far"), true);
  const TestMemory written(3 * kBlock);
  const TestMemory read(3 * kBlock);
  fill_random(written.span(), 11);
  for (const int64_t offset : {(int64_t{1} << 31) - kBlock, (int64_t{1} << 32) + 5 * kBlock}) {
    engine->submit(make_request(IoOperation::write, file, offset, written.span())).wait();
    std::memset(read.data(), 0, read.size());
    engine->submit(make_request(IoOperation::read, file, offset, read.span())).wait();
    EXPECT_EQ(std::memcmp(written.data(), read.data(), read.size()), 0) << offset;
  }
}

TEST_P(Conformance, MissingFileIsAnIoError) {
  const auto engine = make(options());
  try {
    engine->open(folder_.file("missing"), false);
    FAIL() << "opened a file that does not exist";
  } catch (const IoError& error) {
    EXPECT_EQ(error.where().error_number, ENOENT);
    EXPECT_EQ(error.where().path, folder_.file("missing"));
  }
}

TEST_P(Conformance, MisuseIsAnInternalError) {
  const auto engine = make(options());
  const FileId file = engine->open(folder_.file("misuse"), true);
  const TestMemory memory(2 * kBlock);
  const auto span = memory.span();
  auto negative = make_request(IoOperation::read, file, -kBlock, span);
  EXPECT_THROW(engine->submit(negative), InternalError);
  EXPECT_THROW(engine->submit(make_request(IoOperation::read, FileId{99}, 0, span)), InternalError);
  if (engine->alignment() == Bytes(kBlock)) {
    EXPECT_THROW(engine->submit(make_request(IoOperation::write, file, 512, span)), InternalError);
    EXPECT_THROW(engine->submit(make_request(IoOperation::write, file, 0, span.first(100))),
                 InternalError);
    EXPECT_THROW(engine->submit(make_request(IoOperation::write, file, 0, span.subspan(8, kBlock))),
                 InternalError);
  }
  engine->submit(make_request(IoOperation::write, file, 0, span.first(0))).wait();
  engine->close(file);
  EXPECT_THROW(engine->submit(make_request(IoOperation::read, file, 0, span)), InternalError);
  EXPECT_THROW(engine->close(file), InternalError);
  EXPECT_THROW(engine->sync(file), InternalError);
}

TEST_P(Conformance, DestructorEndsWhatIsInFlight) {
  const TestMemory memory(4 << 20);
  fill_random(memory.span().first(kBlock), 5);
  std::vector<Completion> flying;
  {
    const auto engine = make(options());
    const FileId file = engine->open(folder_.file("drain"), true);
    for (int i = 0; i < 8; ++i) {
      flying.push_back(engine->submit(make_request(
          IoOperation::write, file, i * static_cast<int64_t>(memory.size()), memory.span())));
    }
  }
  for (const Completion& completion : flying) {
    EXPECT_TRUE(completion.is_done());
    EXPECT_NO_THROW(completion.wait());
  }
}

TEST_P(Conformance, CloseWaitsForRequests) {
  const auto engine = make(options());
  const TestMemory memory(4 << 20);
  const FileId file = engine->open(folder_.file("closing"), true);
  const Completion completion =
      engine->submit(make_request(IoOperation::write, file, 0, memory.span()));
  engine->close(file);
  EXPECT_NO_THROW(completion.wait());
}

TEST_P(Conformance, NoDescriptorLeaks) {
  const TestMemory memory(kBlock);
  make(options()).reset();
  const size_t before = open_descriptors();
  for (int round = 0; round < 5; ++round) {
    const auto engine = make(options());
    for (int i = 0; i < 10; ++i) {
      const FileId file = engine->open(folder_.file(fmt::format("leak{}", i)), true);
      engine->submit(make_request(IoOperation::write, file, 0, memory.span())).wait();
      if (i % 2 == 0) {
        engine->close(file);
      }
    }
    EXPECT_THROW(engine->open(folder_.file("not/there"), false), IoError);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(Conformance, DescriptorReuseReachesTheNewFile) {
  const auto engine = make(options());
  const TestMemory memory(kBlock);
  for (uint64_t round = 0; round < 20; ++round) {
    const std::string path = folder_.file(fmt::format("reuse{}", round));
    const FileId file = engine->open(path, true);
    fill_random(memory.span(), round);
    engine->submit(make_request(IoOperation::write, file, 0, memory.span())).wait();
    engine->close(file);
    const FileId again = engine->open(path, false);
    const TestMemory read(kBlock);
    engine->submit(make_request(IoOperation::read, again, 0, read.span())).wait();
    ASSERT_EQ(std::memcmp(memory.data(), read.data(), kBlock), 0) << round;
    engine->close(again);
  }
}

TEST_P(Conformance, BusySecondsAndRequestsAreCounted) {
  const auto engine = make(options());
  const TestMemory memory(1 << 20);
  const FileId file = engine->open(folder_.file("statistics"), true);
  const auto begin = std::chrono::steady_clock::now();
  engine->submit(make_request(IoOperation::write, file, 0, memory.span())).wait();
  const IoStatistics written = engine->statistics();
  EXPECT_EQ(written.bytes_written, 1 << 20);
  EXPECT_EQ(written.bytes_read, 0);
  EXPECT_EQ(written.requests, 1);
  EXPECT_GT(written.write_busy_seconds, 0.0);
  EXPECT_EQ(written.read_busy_seconds, 0.0);
  engine->submit(make_request(IoOperation::read, file, 0, memory.span())).wait();
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const IoStatistics both = engine->statistics();
  EXPECT_EQ(both.requests, 2);
  EXPECT_GT(both.read_busy_seconds, 0.0);
  EXPECT_LE(both.read_busy_seconds + both.write_busy_seconds, wall);
}

TEST_P(Conformance, AllocateSetsTheLength) {
  const auto engine = make(options());
  const std::string path = folder_.file("length");
  const FileId file = engine->open(path, true);
  const TestMemory memory(2 * kBlock);
  const auto can_read = [&](int64_t blocks) {
    try {
      engine
          ->submit(make_request(IoOperation::read, file, (blocks - 1) * kBlock,
                                memory.span().first(kBlock)))
          .wait();
      return true;
    } catch (const IoError&) {
      return false;
    }
  };
  engine->allocate(file, Bytes(8 * kBlock));
  EXPECT_TRUE(can_read(8));
  EXPECT_FALSE(can_read(9));
  engine->allocate(file, Bytes(4 * kBlock));
  EXPECT_FALSE(can_read(5));
  engine->allocate(file, Bytes(0));
  EXPECT_FALSE(can_read(1));
}

std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  std::string backend = info.param.backend == BackendKind::io_uring      ? "Uring"
                        : info.param.backend == BackendKind::thread_pool ? "ThreadPool"
                                                                         : "Simulated";
  backend += info.param.submission == SubmissionMode::sq_poll   ? "SqPoll"
             : info.param.submission == SubmissionMode::io_poll ? "IoPoll"
                                                                : "";
  return (info.param.limited ? "Limited" : "") + backend +
         (info.param.direct ? "Direct" : "Buffered");
}

INSTANTIATE_TEST_SUITE_P(
    Backends, Conformance,
    ::testing::Values(Setting{BackendKind::io_uring, true}, Setting{BackendKind::io_uring, false},
                      Setting{BackendKind::io_uring, true, SubmissionMode::sq_poll},
                      Setting{BackendKind::io_uring, false, SubmissionMode::sq_poll},
                      Setting{BackendKind::io_uring, true, SubmissionMode::io_poll},
                      Setting{BackendKind::io_uring, false, SubmissionMode::io_poll},
                      Setting{BackendKind::thread_pool, true},
                      Setting{BackendKind::thread_pool, false},
                      Setting{BackendKind::simulated, true}, Setting{BackendKind::simulated, false},
                      Setting{BackendKind::io_uring, true, SubmissionMode::interrupt, true},
                      Setting{BackendKind::io_uring, true, SubmissionMode::io_poll, true},
                      Setting{BackendKind::thread_pool, false, SubmissionMode::interrupt, true},
                      Setting{BackendKind::simulated, true, SubmissionMode::interrupt, true}),
    name_of);

}  // namespace
}  // namespace headrace::aio
