// Registered memory and the memlock limit. The reference is what the kernel says it has pinned.

#include <gmock/gmock.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cstring>
#include <functional>

#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kMemory = 16 << 20;
constexpr int kSkipped = 77;

/// Runs `check` in a child process; its exit status: 0 when no expectation failed.
int in_child(const std::function<void()>& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      check();
      code = ::testing::Test::IsSkipped() ? kSkipped : ::testing::Test::HasFailure() ? 1 : 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      code = 2;
    }
    std::fflush(nullptr);
    ::_exit(code);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// io_uring ignores the limit for whoever has CAP_IPC_LOCK when the ring is set up.
bool drop_memlock_privilege() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> data{};
  if (::syscall(SYS_capget, &header, data.data()) != 0) {
    return false;
  }
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  return ::syscall(SYS_capset, &header, data.data()) == 0;
}

/// Everything is read to and written from `registered`.
void expect_round_trip(IoEngine& engine, const TestFolder& folder,
                       std::span<std::byte> registered) {
  const FileId file = engine.open(folder.file("file"), true);
  const TestMemory plain(registered.size());
  fill_random(plain.span(), 1);
  engine.submit(make_request(IoOperation::write, file, 0, plain.span())).wait();
  engine.submit(make_request(IoOperation::read, file, 0, registered)).wait();
  EXPECT_EQ(std::memcmp(plain.data(), registered.data(), registered.size()), 0);
  fill_random(registered, 2);
  engine.submit(make_request(IoOperation::write, file, 0, registered)).wait();
  engine.submit(make_request(IoOperation::read, file, 0, plain.span())).wait();
  EXPECT_EQ(std::memcmp(plain.data(), registered.data(), registered.size()), 0);
  engine.close(file);
}

class LockedMemory : public ::testing::TestWithParam<SubmissionMode> {
 protected:
  void SetUp() override {
    if (!uring_refusal().empty()) {
      GTEST_SKIP() << "io_uring is refused here: " << uring_refusal();
    }
    options_.submission = GetParam();
    // Parts that begin and end anywhere in the chunks that are registered.
    options_.block_size = Bytes(75 * 4096);
  }

  /// With a memlock limit: what is registered is as much as fits, and the rest works too.
  void check_limit(Bytes limit) const {
    const rlimit lowered{.rlim_cur = static_cast<rlim_t>(limit.count()),
                         .rlim_max = static_cast<rlim_t>(limit.count())};
    if (::setrlimit(RLIMIT_MEMLOCK, &lowered) != 0 || !drop_memlock_privilege()) {
      GTEST_SKIP() << "the memlock limit or CAP_IPC_LOCK cannot be lowered here";
    }
    const TestFolder folder;
    const TestMemory memory(kMemory);
    fill_random(memory.span(), 9);
    const Bytes before = pinned_memory();
    const auto engine = IoEngine::create(options_);
    engine->register_memory(memory.span());
    const Bytes pinned = pinned_memory() - before;
    EXPECT_LE(pinned, limit);
    if (limit >= kMiB * 4) {
      EXPECT_GE(pinned, limit / 2);
      EXPECT_THAT(engine->description(),
                  HasSubstr("registered buffers (" + format_bytes(pinned) + " of 16.0 MiB"));
    } else {
      EXPECT_EQ(pinned, Bytes(0));
      EXPECT_THAT(engine->description(), Not(HasSubstr("registered buffers")));
    }
    expect_round_trip(*engine, folder, memory.span());
  }

  IoEngineOptions options_;
};

TEST_P(LockedMemory, AsMuchIsRegisteredAsTheLimitAllows) {
  for (const Bytes limit : {kKiB * 64, kMiB * 5, kMiB * 7}) {
    const int status = in_child([&] { check_limit(limit); });
    if (status == kSkipped) {
      GTEST_SKIP() << "the memlock limit or CAP_IPC_LOCK cannot be lowered here";
    }
    EXPECT_EQ(status, 0) << format_bytes(limit);
  }
}

TEST_P(LockedMemory, HundredEnginesLeaveNothingBehind) {
  const TestFolder folder;
  const TestMemory memory(kMemory / 4);
  fill_random(memory.span(), 9);
  const size_t descriptors = open_descriptors();
  const Bytes pinned = pinned_memory();
  bool has_registered = false;
  for (int cycle = 0; cycle < 100; ++cycle) {
    const auto engine = IoEngine::create(options_);
    engine->register_memory(memory.span());
    has_registered = has_registered || pinned_memory() > pinned;
    if (cycle % 25 == 0) {
      expect_round_trip(*engine, folder, memory.span());
    }
    engine->open(folder.file("left open"), true);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(pinned_memory(), pinned);
  if (!has_registered) {
    GTEST_SKIP() << "this kernel or memlock limit refuses registration: only descriptors counted";
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LockedMemory,
                         ::testing::Values(SubmissionMode::interrupt, SubmissionMode::sq_poll,
                                           SubmissionMode::io_poll),
                         [](const auto& mode) {
                           return mode.param == SubmissionMode::interrupt ? "Interrupt"
                                  : mode.param == SubmissionMode::sq_poll ? "SqPoll"
                                                                          : "IoPoll";
                         });

}  // namespace
}  // namespace headrace::aio
