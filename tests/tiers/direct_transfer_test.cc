// Transfers from nvme straight to the device: a reader that reads the store's own files.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/tiers/tiered_fixture.h"

namespace headrace::tiers {
namespace {

using ::testing::HasSubstr;

/// Reads on one thread; the next read can be made to fail.
class FakeReader final : public device::DirectReader {
 public:
  Completion read(const std::string& path, int64_t offset, std::byte* target,
                  Bytes length) override {
    auto promise = std::make_shared<Promise>();
    Completion end = promise->completion();
    worker_.post([this, promise, path, offset, target, length] {
      const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      const ssize_t got = ::pread(file, target, static_cast<size_t>(length.count()), offset);
      ::close(file);
      ++reads_;
      if (got != length.count() || fails_.exchange(false)) {
        promise->set_failed(std::make_exception_ptr(IoError("a direct read failed", {path})));
      } else {
        promise->set_done();
      }
    });
    return end;
  }
  void close(const std::string& /*path*/) override {}
  std::string description() const override { return "fake"; }

  void fail_next() { fails_ = true; }
  int reads() const { return reads_; }

 private:
  std::atomic<int> reads_ = 0;
  std::atomic<bool> fails_ = false;
  SerialWorker worker_{"fake-direct"};
};

class DirectTransfer : public test::TieredTest {
 protected:
  void use_reader(bool verify_reads) {
    store_.reset();
    extents_.reset();
    ExtentStoreOptions options;
    options.paths = {folder_.path()};
    options.run_id = "direct";
    options.disk_budget = Bytes(256 << 20);
    options.growth_step = Bytes(1 << 20);
    options.verify_reads = verify_reads;
    extents_ = ExtentStore::create(options, io_);
    remake(&reader_);
  }

  /// An object whose only copy is on nvme.
  ObjectId on_nvme(const std::string& name, uint64_t seed) {
    const ObjectId object = add(name);
    place_and_write(object, Tier::host, 0, seed);
    transfer(object, Tier::host, Tier::nvme, 0);
    store_->drop(object, Tier::host);
    return object;
  }

  FakeReader reader_;
};

TEST_F(DirectTransfer, BringsTheValueAndTakesNoHostMemory) {
  use_reader(false);
  const ObjectId a = on_nvme("a", 1);
  const Bytes host_before = host_arena_.high_water();
  transfer(a, Tier::nvme, Tier::device, kSize);
  EXPECT_TRUE(holds(a, Tier::device, 1));
  EXPECT_EQ(store_->state(a, Tier::host), CopyState::absent);
  EXPECT_EQ(host_arena_.used(), Bytes(0));
  EXPECT_EQ(host_arena_.high_water(), host_before);
  EXPECT_EQ(store_->offset(a, Tier::device), kSize);
  const TierTraffic traffic = store_->traffic();
  EXPECT_EQ(traffic.direct, kSize);
  EXPECT_EQ(traffic.nvme_read, kSize);
  EXPECT_EQ(traffic.host_to_device, kSize);
  EXPECT_EQ(down_.copies(), 0);
}

TEST_F(DirectTransfer, OneThatIsInFlightIsJoined) {
  use_reader(false);
  const ObjectId a = on_nvme("a", 1);
  const Completion first = start(a, Tier::nvme, Tier::device, 0);
  start(a, Tier::nvme, Tier::device, 0).wait();
  first.wait();
  EXPECT_EQ(reader_.reads(), 1);
}

TEST_F(DirectTransfer, AFailedOneLeavesTheValueOnNvmeAndTheRoomFree) {
  use_reader(false);
  const ObjectId a = on_nvme("a", 1);
  reader_.fail_next();
  EXPECT_THAT(test::message_of<IoError>([&] { transfer(a, Tier::nvme, Tier::device, 0); }),
              HasSubstr("a direct read failed"));
  EXPECT_EQ(store_->state(a, Tier::device), CopyState::absent);
  EXPECT_EQ(device_arena_.used(), Bytes(0));
  EXPECT_EQ(store_->traffic().direct, 0);
  transfer(a, Tier::nvme, Tier::device, 0);
  EXPECT_TRUE(holds(a, Tier::device, 1));
}

TEST_F(DirectTransfer, GivesTheLatestValueWhileANewOneComes) {
  use_reader(false);
  const ObjectId a = on_nvme("a", 1);
  extents_->commit(1, {});
  transfer(a, Tier::nvme, Tier::host, 0);
  write(a, Tier::host, 2);
  transfer(a, Tier::host, Tier::nvme, 0);
  transfer(a, Tier::nvme, Tier::device, 0);
  EXPECT_TRUE(holds(a, Tier::device, 2));
}

TEST_F(DirectTransfer, AreRefusedWhereReadsAreToBeVerified) {
  use_reader(true);
  const ObjectId a = on_nvme("a", 1);
  EXPECT_THAT(test::message_of<InternalError>([&] { transfer(a, Tier::nvme, Tier::device, 0); }),
              HasSubstr("is not verified"));
  EXPECT_EQ(reader_.reads(), 0);
}

TEST_F(DirectTransfer, AreRefusedWithoutAReader) {
  const ObjectId a = on_nvme("a", 1);
  EXPECT_THROW(start(a, Tier::nvme, Tier::device, 0), InternalError);
}

}  // namespace
}  // namespace headrace::tiers
