// The choice of the backend, its limits and its refusals.

#include <gmock/gmock.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstring>
#include <thread>

#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

TEST(CreateEngine, OptionsOutOfRangeAreNamed) {
  const auto refuse = [](const IoEngineOptions& options, const std::string& key) {
    try {
      IoEngine::create(options);
      ADD_FAILURE() << key << " was accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(key));
    }
  };
  IoEngineOptions options;
  options.block_size = Bytes(1000);
  refuse(options, "aio.block_size");
  options.block_size = Bytes(0);
  refuse(options, "aio.block_size");
  options.block_size = kGiB * 2;
  refuse(options, "aio.block_size");
  options = {};
  options.queue_depth = 0;
  refuse(options, "aio.queue_depth");
  options = {};
  options.threads = 0;
  refuse(options, "I/O threads");
}

TEST(CreateEngine, DescriptionSaysWhatIsUsed) {
  const TestFolder folder;
  IoEngineOptions options;
  options.backend = BackendKind::thread_pool;
  options.direct = false;
  options.threads = 3;
  const auto engine = IoEngine::create(options);
  engine->open(folder.file("file"), true);
  EXPECT_EQ(engine->description(), "thread pool, buffered, 3 threads");
  EXPECT_EQ(engine->alignment(), Bytes(1));
}

TEST(CreateEngine, UringRegistersBuffersAndFiles) {
  if (!uring_refusal().empty()) {
    GTEST_SKIP() << "io_uring is refused here: " << uring_refusal();
  }
  const TestFolder folder;
  const auto engine = IoEngine::create({});
  const TestMemory memory(1 << 20);
  engine->register_memory(memory.span());
  engine->open(folder.file("file"), true);
  EXPECT_THAT(engine->description(), ::testing::StartsWith("io_uring, "));
  if (engine->description().find("registered buffers and files") == std::string::npos) {
    GTEST_SKIP() << "this kernel or memlock limit refuses registration: " << engine->description();
  }
}

/// Gives up CAP_IPC_LOCK for the calling thread, so that the memlock limit binds root too.
bool drop_memlock_privilege() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> data{};
  if (::syscall(SYS_capget, &header, data.data()) != 0) {
    return false;
  }
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  return ::syscall(SYS_capset, &header, data.data()) == 0;
}

TEST(CreateEngine, MemlockLimitOnlyCostsTheRegistration) {
  if (!uring_refusal().empty()) {
    GTEST_SKIP() << "io_uring is refused here: " << uring_refusal();
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit tiny{.rlim_cur = 64 * 1024, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &tiny), 0);
  std::string skipped;
  std::thread([&] {
    if (!drop_memlock_privilege()) {
      skipped = "capset is not permitted here";
      return;
    }
    const TestFolder folder;
    const auto engine = IoEngine::create({});
    const TestMemory memory(8 << 20);
    fill_random(memory.span().first(4096), 1);
    engine->register_memory(memory.span());
    const FileId file = engine->open(folder.file("file"), true);
    EXPECT_THAT(engine->description(), ::testing::Not(::testing::HasSubstr("registered buffers")));
    engine->submit(make_request(IoOperation::write, file, 0, memory.span())).wait();
    const TestMemory read(8 << 20);
    engine->submit(make_request(IoOperation::read, file, 0, read.span())).wait();
    EXPECT_EQ(std::memcmp(memory.data(), read.data(), read.size()), 0);
  }).join();
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (!skipped.empty()) {
    GTEST_SKIP() << skipped;
  }
}

}  // namespace
}  // namespace headrace::aio
