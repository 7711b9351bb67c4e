// A real full disk, where the tests may mount one.

#include <sys/mount.h>

#include <cstring>

#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

constexpr int64_t kBlock = 4096;

/// A real file system of one megabyte.
class TinyFileSystem : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    if (GetParam() == BackendKind::io_uring && !uring_refusal().empty()) {
      GTEST_SKIP() << "io_uring is refused here: " << uring_refusal();
    }
    if (::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
      GTEST_SKIP() << "mounting a tmpfs is not permitted here: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) {
      EXPECT_EQ(::umount2(folder_.path().c_str(), MNT_DETACH), 0) << std::strerror(errno);
    }
  }
  TestFolder folder_;
  bool mounted_ = false;
};

TEST_P(TinyFileSystem, FullDiskIsNamed) {
  IoEngineOptions options;
  options.backend = GetParam();
  options.direct = false;
  options.block_size = Bytes(64 * kBlock);
  const auto engine = IoEngine::create(options);
  const std::string path = folder_.file("full");
  const FileId file = engine->open(path, true);
  try {
    engine->allocate(file, kMiB * 4);
    FAIL() << "4 MiB fit into 1 MiB";
  } catch (const IoError& error) {
    EXPECT_EQ(error.where().error_number, ENOSPC);
    EXPECT_EQ(error.where().path, path);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no space left"));
  }
  const TestMemory memory(4 << 20);
  const IoError error =
      error_of(engine->submit(make_request(IoOperation::write, file, 0, memory.span())));
  EXPECT_EQ(error.where().error_number, ENOSPC);
  EXPECT_LE(error.where().offset, int64_t{1} << 20);  // what came before may be there, not more
  EXPECT_LT(error.where().actual_bytes, error.where().expected_bytes);
}

INSTANTIATE_TEST_SUITE_P(Backends, TinyFileSystem,
                         ::testing::Values(BackendKind::io_uring, BackendKind::thread_pool),
                         [](const auto& backend) {
                           return backend.param == BackendKind::io_uring ? "Uring" : "ThreadPool";
                         });

}  // namespace
}  // namespace headrace::aio
