// New file space that is written once ahead of its use.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/support/temporary_folder.h"
#include "tests/tiers/fake_io.h"
#include "tests/tiers/support.h"
#include "tiers/extent_allocator.h"

namespace headrace::tiers {
namespace {

constexpr int64_t kMi = int64_t{1} << 20;

class PrewriteTest : public ::testing::Test {
 protected:
  PrewriteTest() {
    io_->set_hook([this](const aio::IoRequest& request) {
      const std::lock_guard lock(mutex_);
      writes_.push_back(request);
      return fault_;
    });
  }
  void make(Bytes budget, Bytes step, bool prewrite = true) {
    ExtentAllocator::Options options;
    options.directories = {folder_.path()};
    options.weights = {1.0};
    options.disk_budget = budget;
    options.growth_step = step;
    options.prewrite = prewrite;
    allocator_ = std::make_unique<ExtentAllocator>(options, io_);
  }
  std::vector<aio::IoRequest> writes() {
    const std::lock_guard lock(mutex_);
    return writes_;
  }
  /// Waits until so many bytes were written ahead.
  void await_written(int64_t bytes) {
    const auto written = [&] {
      int64_t sum = 0;
      for (const aio::IoRequest& write : writes()) {
        sum += write.length.count();
      }
      return sum;
    };
    while (written() < bytes) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  headrace::test::TemporaryFolder folder_;
  std::mutex mutex_;
  std::vector<aio::IoRequest> writes_;
  test::Fault fault_ = test::Fault::none;
  std::shared_ptr<test::FakeIo> io_ = std::make_shared<test::FakeIo>();
  std::unique_ptr<ExtentAllocator> allocator_;
};

TEST_F(PrewriteTest, WhatGrowthGivesBeyondTheNeedIsWrittenOnce) {
  make(Bytes(64 * kMi), Bytes(16 * kMi));
  const auto extents = allocator_->allocate("a", Bytes(3 * kMi));
  await_written(13 * kMi);
  int64_t next = 3 * kMi;
  for (const aio::IoRequest& write : writes()) {
    EXPECT_EQ(write.operation, aio::IoOperation::write);
    EXPECT_EQ(write.io_class, aio::IoClass::write_back);
    EXPECT_EQ(write.offset, next);
    EXPECT_TRUE(std::all_of(write.data, write.data + write.length.count(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    next += write.length.count();
  }
  EXPECT_EQ(next, 16 * kMi);
  EXPECT_EQ(extents.front().offset, 0);
}

TEST_F(PrewriteTest, OffWritesNothing) {
  make(Bytes(64 * kMi), Bytes(16 * kMi), false);
  allocator_->allocate("a", Bytes(3 * kMi));
  allocator_.reset();
  EXPECT_THAT(writes(), ::testing::IsEmpty());
}

TEST_F(PrewriteTest, AValueDoesNotWaitForSpaceThatNoPieceCovers) {
  make(Bytes(256 * kMi), Bytes(64 * kMi));
  io_->close_gate();  // the first pieces stay in flight
  allocator_->allocate("a", Bytes(kMi));
  const auto extents = allocator_->allocate("b", Bytes(8 * kMi));
  ASSERT_EQ(extents.size(), 1U);
  EXPECT_GE(extents.front().offset, 17 * kMi);  // behind a and eight pieces of 2 MiB
  EXPECT_EQ(allocator_->bytes_on_disk(), Bytes(64 * kMi));
  io_->open_gate();
}

TEST_F(PrewriteTest, TheWholeBudgetCanBeUsed) {
  make(Bytes(64 * kMi), Bytes(16 * kMi));
  io_->close_gate();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    io_->open_gate();
  });
  for (int i = 0; i < 64; ++i) {
    EXPECT_NO_THROW(allocator_->allocate("a", Bytes(kMi))) << i;
  }
  EXPECT_THROW(allocator_->allocate("b", Bytes(kMi)), CapacityError);
  opener.join();
}

TEST_F(PrewriteTest, FailedPiecesOnlyEndIt) {
  fault_ = test::Fault::fail;
  make(Bytes(64 * kMi), Bytes(64 * kMi));
  allocator_->allocate("a", Bytes(kMi));
  for (int i = 1; i < 64; ++i) {
    EXPECT_NO_THROW(allocator_->allocate("a", Bytes(kMi))) << i;
  }
  allocator_.reset();
  EXPECT_LE(writes().size(), 16U);  // those in flight when the first one failed
}

/// A value in file space, checked when it goes.
struct Value {
  std::vector<Extent> extents;
  int64_t size = 0;
  uint64_t seed = 0;
};

void transfer(aio::IoEngine& io, const ExtentAllocator& allocator, aio::IoOperation operation,
              const Value& value, const test::Buffer& buffer) {
  std::byte* data = buffer.data();
  for (const Extent& extent : value.extents) {
    io.submit({operation, aio::IoClass::demand, allocator.file_id(extent), extent.offset, data,
               extent.length})
        .wait();
    data += extent.length.count();
  }
}

/// A piece written over a value would wipe it out.
TEST_F(PrewriteTest, PiecesAreNeverWrittenOverValues) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    make(Bytes(32 * kMi), Bytes(8 * kMi));
    Random random(seed, 3);
    std::vector<Value> values;
    const auto check_and_release = [&](size_t index) {
      const Value& value = values[index];
      const test::Buffer buffer(value.size);
      transfer(*io_, *allocator_, aio::IoOperation::read, value, buffer);
      ASSERT_TRUE(test::has_pattern(buffer.bytes(), value.seed)) << "seed " << seed;
      allocator_->release(value.extents);
      values.erase(values.begin() + static_cast<int64_t>(index));
    };
    for (uint64_t step = 0; step < 60; ++step) {
      if (values.size() > 8 || (!values.empty() && random.below(3) == 0)) {
        check_and_release(random.below(values.size()));
        continue;
      }
      Value value;
      value.size = 4096 * static_cast<int64_t>(1 + random.below(256));
      value.seed = seed * 1000 + step;
      value.extents = allocator_->allocate("v", Bytes(value.size));
      const test::Buffer buffer(value.size);
      test::fill_pattern(buffer.bytes(), value.seed);
      transfer(*io_, *allocator_, aio::IoOperation::write, value, buffer);
      values.push_back(std::move(value));
    }
    while (!values.empty()) {
      check_and_release(0);
    }
    allocator_.reset();
  }
}

}  // namespace
}  // namespace headrace::tiers
