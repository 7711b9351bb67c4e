// Faults on the simulated disk, seen through the same engine that runs over real ones.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

constexpr int64_t kBlock = 4096;

class FaultTest : public ::testing::Test {
 protected:
  void make(const SimulatedDiskOptions& disk_options, int depth = 8) {
    disk_ = std::make_shared<SimulatedDisk>(disk_options);
    options_.queue_depth = depth;
    options_.block_size = Bytes(4 * kBlock);
    engine_ = create_simulated_engine(disk_, options_);
    file_ = engine_->open("disk", true);
  }
  Completion write(int64_t offset, std::span<std::byte> memory) {
    return engine_->submit(make_request(IoOperation::write, file_, offset, memory));
  }
  Completion read(int64_t offset, std::span<std::byte> memory) {
    return engine_->submit(make_request(IoOperation::read, file_, offset, memory));
  }

  IoEngineOptions options_;
  std::shared_ptr<SimulatedDisk> disk_;
  std::unique_ptr<IoEngine> engine_;
  FileId file_{};
  TestMemory written_{64 * kBlock};
  TestMemory read_{64 * kBlock};
};

TEST_F(FaultTest, ShortTransfersAreContinuedOnce) {
  make({});
  fill_random(written_.span(), 1);
  disk_->inject({.operation = IoOperation::write, .transfer_bytes = kBlock});
  disk_->inject({.operation = IoOperation::read, .skip = 2, .transfer_bytes = 3 * kBlock});
  write(0, written_.span()).wait();
  read(0, read_.span()).wait();
  EXPECT_EQ(std::memcmp(written_.data(), read_.data(), read_.size()), 0);
  EXPECT_EQ(disk_->history().size(), 16U + 1U + 16U + 1U);
}

TEST_F(FaultTest, DirectTransferBrokenInsideABlockGoesOnAligned) {
  make({});
  fill_random(written_.span(), 2);
  disk_->inject({.operation = IoOperation::write, .transfer_bytes = kBlock + 700});
  write(0, written_.span()).wait();
  const auto history = disk_->history();
  const auto again = std::find_if(history.begin() + 1, history.end(), [](const PartRequest& part) {
    return part.offset == kBlock && part.length == 3 * kBlock;
  });
  EXPECT_NE(again, history.end());
  read(0, read_.span()).wait();
  EXPECT_EQ(std::memcmp(written_.data(), read_.data(), read_.size()), 0);
}

TEST_F(FaultTest, ShortTwiceIsAnError) {
  make({}, 1);
  write(0, written_.span()).wait();
  disk_->inject({.skip = 1, .count = 2, .transfer_bytes = kBlock});
  const IoError error = error_of(read(0, read_.span()));
  EXPECT_EQ(error.where().offset, 4 * kBlock);
  EXPECT_EQ(error.where().expected_bytes, 4 * kBlock);
  EXPECT_EQ(error.where().actual_bytes, 2 * kBlock);
  EXPECT_EQ(error.where().error_number, 0);
  read(0, read_.span()).wait();
}

TEST_F(FaultTest, NothingTransferredIsAnError) {
  make({});
  disk_->inject({.operation = IoOperation::write, .transfer_bytes = 0});
  const IoError error = error_of(write(0, written_.span().first(kBlock)));
  EXPECT_EQ(error.where().actual_bytes, 0);
  EXPECT_EQ(error.where().error_number, 0);
}

TEST_F(FaultTest, ErrorNumbersReachTheClient) {
  make({});
  write(0, written_.span()).wait();
  for (const int number : {EIO, ENOSPC, EBADF, EINVAL, EFBIG, EDQUOT, ENXIO}) {
    for (const IoOperation operation : {IoOperation::read, IoOperation::write}) {
      disk_->inject({.operation = operation, .error_number = number});
      const IoError error = error_of(
          engine_->submit(make_request(operation, file_, 8 * kBlock, read_.span().first(kBlock))));
      EXPECT_EQ(error.where().error_number, number);
      EXPECT_EQ(error.where().path, "disk");
      EXPECT_EQ(error.where().offset, 8 * kBlock);
      EXPECT_EQ(error.where().expected_bytes, kBlock);
      EXPECT_EQ(error.where().actual_bytes, 0);
    }
  }
  read(0, read_.span()).wait();
}

TEST_F(FaultTest, LowestFailedPartIsReportedInAnyOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    make({.seed = seed, .reorder = true}, 16);
    write(0, written_.span()).wait();
    disk_->inject({.count = 16, .error_number = EIO});
    EXPECT_EQ(error_of(read(0, read_.span())).where().offset, 0) << "seed " << seed;
  }
}

TEST_F(FaultTest, RestOfAFailedRequestIsNotSent) {
  make({}, 1);
  write(0, written_.span()).wait();
  const size_t before = disk_->history().size();
  disk_->inject({.skip = 1, .error_number = EIO});
  EXPECT_EQ(error_of(read(0, read_.span())).where().offset, 4 * kBlock);
  EXPECT_EQ(disk_->history().size(), before + 2);
}

TEST_F(FaultTest, RetriesAreBounded) {
  make({});
  write(0, written_.span()).wait();
  disk_->inject({.count = 20, .error_number = EAGAIN});
  disk_->inject({.skip = 30, .count = 3, .error_number = EINTR});
  read(0, read_.span()).wait();
  disk_->inject({.count = 1000000, .error_number = EAGAIN});
  const IoError error = error_of(read(0, read_.span().first(kBlock)));
  EXPECT_EQ(error.where().error_number, EAGAIN);
  EXPECT_TRUE(error.is_retryable());
}

TEST_F(FaultTest, FullDiskTakesWhatFitsThenFails) {
  make({.capacity = Bytes(6 * kBlock)});
  const IoError error = error_of(write(0, written_.span().first(8 * kBlock)));
  EXPECT_EQ(error.where().error_number, ENOSPC);
  EXPECT_EQ(error.where().offset, 4 * kBlock);
  EXPECT_EQ(error.where().actual_bytes, 2 * kBlock);
  try {
    engine_->allocate(file_, Bytes(100 * kBlock));
    FAIL() << "allocated more than the disk holds";
  } catch (const IoError& full) {
    EXPECT_EQ(full.where().error_number, ENOSPC);
    EXPECT_EQ(full.where().expected_bytes, 100 * kBlock);
  }
}

TEST_F(FaultTest, AllocateFallsBackToALength) {
  make({.refuse_allocate = true});
  engine_->allocate(file_, Bytes(16 * kBlock));
  read(0, read_.span().first(16 * kBlock)).wait();
}

TEST_F(FaultTest, RefusedDirectIoFallsBackToBuffered) {
  make({.refuse_direct = true});
  EXPECT_THAT(engine_->description(), ::testing::HasSubstr("buffered"));
  write(100, written_.span().first(777)).wait();  // no alignment needed on such a file
  read(100, read_.span().first(777)).wait();
  EXPECT_EQ(engine_->alignment(), Bytes(kBlock));
}

TEST_F(FaultTest, RefusedRegistrationOnlyShowsInTheDescription) {
  make({.refuse_registration = true});
  engine_->register_memory(written_.span());
  EXPECT_THAT(engine_->description(), ::testing::Not(::testing::HasSubstr("registered")));
  write(0, written_.span()).wait();
  make({});
  engine_->register_memory(written_.span());
  EXPECT_THAT(engine_->description(), ::testing::HasSubstr("registered buffers"));
}

TEST_F(FaultTest, CorruptionIsOneBit) {
  make({});
  fill_random(written_.span(), 3);
  disk_->inject({.operation = IoOperation::read, .corrupt = true});
  write(0, written_.span()).wait();
  read(0, read_.span()).wait();
  int wrong_bits = 0;
  for (size_t i = 0; i < read_.size(); ++i) {
    wrong_bits += __builtin_popcount(static_cast<unsigned>(read_.data()[i] ^ written_.data()[i]));
  }
  EXPECT_EQ(wrong_bits, 1);
  read(0, read_.span()).wait();
  EXPECT_EQ(std::memcmp(written_.data(), read_.data(), read_.size()), 0);
}

TEST_F(FaultTest, EverythingAtOnceStillMatches) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    make({.seed = seed, .delay_us_max = 200, .reorder = true, .short_rate = 0.2, .retry_rate = 0.3},
         5);
    fill_random(written_.span(), seed);
    std::vector<Completion> flying;
    for (int64_t at = 0; at < 64; at += 8) {
      flying.push_back(write(
          at * kBlock, written_.span().subspan(static_cast<size_t>(at * kBlock), 8 * kBlock)));
    }
    int failed = 0;  // a part that is short twice is an error, and an honest one
    for (const Completion& completion : flying) {
      try {
        completion.wait();
      } catch (const IoError& error) {
        ++failed;
        EXPECT_LT(error.where().actual_bytes, error.where().expected_bytes);
      }
    }
    if (failed > 0) {
      continue;
    }
    try {
      read(0, read_.span()).wait();
      EXPECT_EQ(std::memcmp(written_.data(), read_.data(), read_.size()), 0) << "seed " << seed;
    } catch (const IoError& error) {
      EXPECT_LT(error.where().actual_bytes, error.where().expected_bytes);
    }
  }
}

TEST_F(FaultTest, SameSeedSameHistory) {
  const auto run = [&](uint64_t seed) {
    make({.seed = seed, .reorder = true});
    disk_->hold();  // so that all parts of the first wave wait together
    const Completion done = write(0, written_.span());
    disk_->release();
    done.wait();
    std::vector<int64_t> offsets;
    for (const PartRequest& part : disk_->history()) {
      offsets.push_back(part.offset);
    }
    return offsets;
  };
  const auto first = run(5);
  EXPECT_EQ(first, run(5));
  EXPECT_NE(first, run(6));
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

TEST_F(FaultTest, DestructorWaitsForHeldParts) {
  make({.delay_us_max = 20000});
  std::vector<Completion> flying;
  for (int i = 0; i < 4; ++i) {
    flying.push_back(write(0, written_.span()));
  }
  engine_.reset();
  for (const Completion& completion : flying) {
    EXPECT_TRUE(completion.is_done());
    EXPECT_NO_THROW(completion.wait());
  }
}

TEST_F(FaultTest, RemovedDeviceFailsEverythingAndHangsNothing) {
  make({.delay_us_max = 500, .reorder = true}, 16);
  write(0, written_.span()).wait();
  disk_->hold();
  std::vector<Completion> flying;  // more than go out at once
  for (int i = 0; i < 20; ++i) {
    flying.push_back(i % 2 == 0 ? read(0, read_.span()) : write(0, written_.span()));
  }
  disk_->remove();
  disk_->release();
  flying.push_back(read(8 * kBlock, read_.span().first(kBlock)));
  for (const Completion& completion : flying) {
    const IoError error = error_of(completion);
    EXPECT_EQ(error.where().error_number, ENODEV);
    EXPECT_EQ(error.where().path, "disk");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the device is gone"));
    EXPECT_FALSE(error.is_retryable());
  }
  EXPECT_EQ(error_of(flying.back()).where().offset, 8 * kBlock);
  EXPECT_THROW(engine_->sync(file_), IoError);
  EXPECT_THROW(engine_->allocate(file_, Bytes(kBlock)), IoError);
  EXPECT_THROW(engine_->open("other", true), IoError);
  EXPECT_NO_THROW(engine_->close(file_));
  engine_.reset();
}

TEST_F(FaultTest, EngineGoesDownOverARemovedDevice) {
  make({.delay_us_max = 2000}, 4);
  std::vector<Completion> flying;
  for (int i = 0; i < 10; ++i) {
    flying.push_back(write(0, written_.span()));
  }
  disk_->remove();
  engine_.reset();
  for (const Completion& completion : flying) {
    EXPECT_TRUE(completion.is_done());
  }
  EXPECT_EQ(error_of(flying.back()).where().error_number, ENODEV);
}

TEST_F(FaultTest, CrashLosesOnlyWhatWasNotSynced) {
  make({});
  fill_random(written_.span(), 8);
  write(0, written_.span().first(32 * kBlock)).wait();
  engine_->sync(file_);
  write(32 * kBlock, written_.span().subspan(32 * kBlock)).wait();
  engine_.reset();
  disk_->crash();
  engine_ = create_simulated_engine(disk_, options_);
  file_ = engine_->open("disk", false);
  read(0, read_.span()).wait();
  EXPECT_EQ(std::memcmp(written_.data(), read_.data(), 32 * kBlock), 0);
  int lost = 0;
  int kept = 0;
  for (int64_t block = 32; block < 64; ++block) {
    const bool same =
        std::memcmp(written_.data() + block * kBlock, read_.data() + block * kBlock, kBlock) == 0;
    ++(same ? kept : lost);
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(kept, 0);
}

/// A backend that dies: the engine must end everything.
class DyingBackend : public SimulatedBackend {
 public:
  using SimulatedBackend::SimulatedBackend;
  void submit(std::span<const PartRequest> /*parts*/) override {
    throw IoError("the ring is gone", IoError::Where{.path = "ring", .error_number = EFAULT});
  }
};

TEST(BrokenBackend, EndsEverythingWithItsError) {
  const IoEngineOptions options;
  const auto engine = create_engine_with_backend(
      std::make_unique<DyingBackend>(std::make_shared<SimulatedDisk>(SimulatedDiskOptions{})),
      options);
  const FileId file = engine->open("disk", true);
  const TestMemory memory(8 * kBlock);
  const auto request = make_request(IoOperation::write, file, 0, memory.span());
  EXPECT_EQ(error_of(engine->submit(request)).where().error_number, EFAULT);
  EXPECT_EQ(error_of(engine->submit(request)).where().error_number, EFAULT);
  EXPECT_THROW(engine->register_memory(memory.span()), IoError);
  EXPECT_NO_THROW(engine->close(file));
}

}  // namespace
}  // namespace headrace::aio
