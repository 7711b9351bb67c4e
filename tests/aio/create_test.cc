// The choice of the backend, its limits and its refusals.

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace headrace::aio
