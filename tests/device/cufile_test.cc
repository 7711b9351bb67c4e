// Direct reads by cuFile over the fake one: bytes of real files in the fake GPU's memory, and what
// is refused or fails.
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "device/cuda/cuda_device.h"
#include "support/temporary_folder.h"
#include "tests/fake_cuda/fake_cufile.h"

namespace headrace::device {
namespace {

using testing::FakeCuda;
using testing::FakeCuFile;

constexpr int64_t kMemory = 12 << 20;
constexpr int64_t kFile = 10 << 20;

class CuFileReads : public ::testing::Test {
 protected:
  CuFileReads() : bytes_(static_cast<size_t>(kFile)) {
    Random random(7, 1);
    for (std::byte& byte : bytes_) {
      byte = static_cast<std::byte>(random.next_u32());
    }
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), kFile);
  }

  DirectSearch open(const FakeCuFile::Options& options = {}) {
    memory_.reset();  // before its device
    cufile_ = std::make_shared<FakeCuFile>(gpu_, options);
    device_ = std::make_unique<cuda::CudaDevice>(gpu_, 0, GpuOptions(),
                                                 [this](std::string&) { return cufile_; });
    memory_ = device_->allocate(Bytes(kMemory));
    return device_->open_direct_reader({memory_->data(), static_cast<size_t>(kMemory)});
  }
  std::unique_ptr<DirectReader> reader(const FakeCuFile::Options& options = {}) {
    DirectSearch search = open(options);
    EXPECT_EQ(search.refusal, "");
    return std::move(search.reader);
  }
  std::string refusal(const FakeCuFile::Options& options) {
    const DirectSearch search = open(options);
    EXPECT_EQ(search.reader, nullptr);
    EXPECT_EQ(cufile_->live_objects(), 0);
    return search.refusal;
  }
  /// The message with which a read of the whole file fails.
  std::string failure(DirectReader& reader) {
    try {
      reader.read(path_, 0, memory_->data(), Bytes(kFile)).wait();
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }
  std::vector<std::byte> on_device(int64_t offset, int64_t size) {
    std::vector<std::byte> copied(static_cast<size_t>(size));
    const auto stream = device_->create_stream("back");
    stream->copy_async(copied.data(), memory_->data() + offset, Bytes(size));
    stream->synchronize();
    return copied;
  }
  bool holds(int64_t at, int64_t offset, int64_t size) {
    const std::vector<std::byte> found = on_device(at, size);
    return std::equal(found.begin(), found.end(), bytes_.begin() + offset);
  }

  test::TemporaryFolder folder_;
  std::string path_ = folder_ / "data";
  std::vector<std::byte> bytes_;
  std::shared_ptr<FakeCuda> gpu_ = std::make_shared<FakeCuda>();
  std::shared_ptr<FakeCuFile> cufile_;
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<Memory> memory_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(CuFileReads, BringTheBytesOfAnyRange) {
  const auto direct = reader();
  EXPECT_EQ(direct->description(), "cuFile 1.14, nvidia-fs 2.22");
  Random random(3, 1);
  for (int round = 0; round < 40; ++round) {
    const auto blocks = [&](int64_t most) {
      return 4096 * static_cast<int64_t>(random.below(static_cast<uint64_t>(most / 4096) + 1));
    };
    const int64_t size = std::max<int64_t>(4096, blocks(kFile));
    const int64_t offset = blocks(kFile - size);
    const int64_t at = blocks(kMemory - size);
    direct->read(path_, offset, memory_->data() + at, Bytes(size)).wait();
    EXPECT_TRUE(holds(at, offset, size)) << size << " bytes from " << offset << " to " << at;
  }
}

TEST_F(CuFileReads, SeveralGoOnAtOnceAndTheEndIsWaitedFor) {
  auto direct = reader();
  cufile_->slow_reads(std::chrono::milliseconds(5));
  constexpr int64_t kSize = 1 << 20;
  for (int64_t at = 0; at < kFile; at += kSize) {
    direct->read(path_, at, memory_->data() + at, Bytes(kSize));
  }
  direct.reset();
  EXPECT_TRUE(holds(0, 0, kFile));
  EXPECT_EQ(cufile_->live_objects(), 0);
}

TEST_F(CuFileReads, AFileThatIsClosedIsOpenedAnew) {
  const auto direct = reader();
  direct->read(path_, 0, memory_->data(), Bytes(4096)).wait();
  const int64_t open = cufile_->live_objects();
  direct->close(path_);
  EXPECT_EQ(cufile_->live_objects(), open - 1);
  direct->read(path_, 4096, memory_->data(), Bytes(4096)).wait();
  EXPECT_TRUE(holds(0, 4096, 4096));
}

TEST_F(CuFileReads, AreRefusedWhereCuFileMayCopyItself) {
  EXPECT_TRUE(has(refusal({.can_forbid = false}), "properties.allow_compat_mode"));
  EXPECT_TRUE(has(refusal({.posix_mode = true}), "properties.posix_io_mode"));
}

TEST_F(CuFileReads, AreRefusedWithTheReason) {
  EXPECT_TRUE(has(refusal({.has_driver = false}), "nvidia-fs is not loaded"));
  EXPECT_TRUE(has(refusal({.can_pin = false}), "BAR1"));
  EXPECT_TRUE(has(failure(*reader({.supports_files = false})), "this file system or drive"));
}

TEST_F(CuFileReads, OneDriverAtATime) {
  const auto first = reader();
  const DirectSearch second =
      device_->open_direct_reader({memory_->data(), static_cast<size_t>(kMemory)});
  EXPECT_EQ(second.reader, nullptr);
  EXPECT_TRUE(has(second.refusal, "something else in this process"));
}

TEST_F(CuFileReads, TheLimitOfPinnedMemoryIsRaised) {
  EXPECT_EQ(failure(*reader({.pinned_limit_kib = 1024})), "");
  EXPECT_TRUE(holds(0, 0, kFile));
}

TEST_F(CuFileReads, ShortReadsGoOn) {
  constexpr int64_t kShort = 12288;
  const auto direct = reader();
  cufile_->shorten_reads(kShort);
  EXPECT_EQ(failure(*direct), "");
  EXPECT_TRUE(holds(0, 0, kFile));
  EXPECT_GE(cufile_->reads(), kFile / kShort);
}

TEST_F(CuFileReads, FailuresNameFileAndBytes) {
  const auto direct = reader();
  cufile_->fail_read(0, -1, EIO);
  EXPECT_TRUE(has(failure(*direct), path_));
  cufile_->fail_read(1, -5044);
  EXPECT_TRUE(has(failure(*direct), "error 5044"));
  cufile_->fail_read(0, 1000);
  EXPECT_TRUE(has(failure(*direct), "ended early"));
  cufile_->fail_read(0, 0);
  EXPECT_TRUE(has(failure(*direct), "headrace.gpudirect"));
  EXPECT_EQ(failure(*direct), "");
  cufile_->fail_read(0, -1, EINTR);
  EXPECT_EQ(failure(*direct), "") << "it is tried again";
  EXPECT_TRUE(holds(0, 0, kFile));
}

TEST_F(CuFileReads, PastTheEndAndMissingFilesFail) {
  const auto direct = reader();
  EXPECT_THROW(direct->read(path_, kFile - 4096, memory_->data(), Bytes(8192)).wait(), IoError);
  EXPECT_THROW(direct->read(path_ + "x", 0, memory_->data(), Bytes(4096)).wait(), IoError);
}

TEST_F(CuFileReads, MisuseIsAnInternalError) {
  const auto direct = reader();
  EXPECT_THROW(direct->read(path_, 100, memory_->data(), Bytes(4096)), InternalError);
  EXPECT_THROW(direct->read(path_, 0, memory_->data() + 8, Bytes(4096)), InternalError);
  EXPECT_THROW(direct->read(path_, 0, memory_->data(), Bytes(kMemory + 4096)), InternalError);
}

TEST(CuFileLibrary, IsThereOrSaysWhyNot) {
  std::string refusal;
  const auto cufile = cuda::open_cufile_library(refusal);
  EXPECT_EQ(cufile == nullptr, has(refusal, "cuFile"));
}

TEST(CpuDevice, HasNoDirectReads) {
  const auto device = make_cpu_device();
  const auto memory = device->allocate(Bytes(4096));
  const DirectSearch search = device->open_direct_reader({memory->data(), 4096});
  EXPECT_EQ(search.reader, nullptr);
  EXPECT_NE(search.refusal, "");
}

}  // namespace
}  // namespace headrace::device
