// Faults between the engine and the real backends: the kernel's own transfers, cut short, failed or
// interrupted on their way.

#include <gmock/gmock.h>

#include "support/faulty_backend.h"
#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using test::FaultChoice;
using test::FaultPlan;
using test::PartFault;

constexpr int64_t kBlock = 4096;

class BackendFaultTest : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    IoEngineOptions options;
    options.backend = GetParam();
    options.block_size = Bytes(4 * kBlock);
    options.queue_depth = 1;  // parts go out in order
    options.threads = 2;
    engine_ = test::make_faulty_engine(options, plan_);
    if (engine_ == nullptr) {
      GTEST_SKIP() << "io_uring is refused here: " << uring_refusal();
    }
    file_ = engine_->open(path_, true);
    fill_random(written_.span(), 1);
    engine_->allocate(file_, Bytes(16 * kBlock));
  }
  Completion transfer(IoOperation operation) {
    return engine_->submit(make_request(
        operation, file_, 0, operation == IoOperation::write ? written_.span() : read_.span()));
  }
  void expect_as_written() {
    plan_->clear();
    std::memset(read_.data(), 0, read_.size());
    transfer(IoOperation::read).wait();
    EXPECT_EQ(std::memcmp(read_.data(), written_.data(), read_.size()), 0);
  }

  TestFolder folder_{HEADRACE_BINARY_DIR};
  std::string path_ = folder_.file("file");
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::unique_ptr<IoEngine> engine_;
  FileId file_{};
  TestMemory written_{16 * kBlock};
  TestMemory read_{16 * kBlock};
};

TEST_P(BackendFaultTest, AShortTransferIsContinued) {
  for (const IoOperation operation : {IoOperation::write, IoOperation::read}) {
    plan_->hit(operation, {PartFault::cut_short}, 1, 2);
    transfer(operation).wait();
    expect_as_written();
  }
  EXPECT_EQ(plan_->hits(), 2);
}

TEST_P(BackendFaultTest, ATransferThatStaysShortIsAnError) {
  transfer(IoOperation::write).wait();
  for (const IoOperation operation : {IoOperation::write, IoOperation::read}) {
    plan_->hit(operation, {PartFault::cut_short}, 2, 1);
    const IoError error = error_of(transfer(operation));
    EXPECT_EQ(error.where().path, path_);
    EXPECT_EQ(error.where().offset, 4 * kBlock);
    EXPECT_EQ(error.where().expected_bytes, 4 * kBlock);
    EXPECT_EQ(error.where().actual_bytes, 3 * kBlock);  // half of it, then half of the rest
    EXPECT_EQ(error.where().error_number, 0);
    transfer(IoOperation::write).wait();
    expect_as_written();
  }
}

TEST_P(BackendFaultTest, ErrorsComeWithTheirPlace) {
  transfer(IoOperation::write).wait();
  for (const IoOperation operation : {IoOperation::write, IoOperation::read}) {
    for (const int number : {EIO, ENOSPC, EDQUOT, ENODEV}) {
      plan_->hit(operation, {PartFault::fail, number}, 1, 3);
      const IoError error = error_of(transfer(operation));
      EXPECT_EQ(error.where().path, path_);
      EXPECT_EQ(error.where().offset, 12 * kBlock);
      EXPECT_EQ(error.where().expected_bytes, 4 * kBlock);
      EXPECT_EQ(error.where().actual_bytes, 0);
      EXPECT_EQ(error.where().error_number, number);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(path_));
      expect_as_written();
    }
  }
}

TEST_P(BackendFaultTest, InterruptedTransfersAreTriedAgain) {
  for (const IoOperation operation : {IoOperation::write, IoOperation::read}) {
    for (const int number : {EINTR, EAGAIN}) {
      plan_->hit(operation, {PartFault::fail, number}, 5, 1);
      transfer(operation).wait();
      expect_as_written();
      plan_->hit(operation, {PartFault::fail, number}, 1'000'000);
      const IoError error = error_of(transfer(operation));
      EXPECT_EQ(error.where().error_number, number);
      EXPECT_TRUE(error.is_retryable());
      plan_->clear();
    }
  }
}

TEST_P(BackendFaultTest, FailedSyncAndAllocation) {
  plan_->set_errors(EIO, ENOSPC);
  try {
    engine_->sync(file_);
    ADD_FAILURE() << "the sync ended well";
  } catch (const IoError& error) {
    EXPECT_EQ(error.where().error_number, EIO);
    EXPECT_EQ(error.where().path, path_);
  }
  try {
    engine_->allocate(file_, Bytes(64 * kBlock));
    ADD_FAILURE() << "the allocation ended well";
  } catch (const IoError& error) {
    EXPECT_EQ(error.where().error_number, ENOSPC);
    EXPECT_EQ(error.where().path, path_);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendFaultTest,
                         ::testing::Values(BackendKind::io_uring, BackendKind::thread_pool),
                         [](const auto& backend) {
                           return backend.param == BackendKind::io_uring ? "Uring" : "ThreadPool";
                         });

}  // namespace
}  // namespace headrace::aio
