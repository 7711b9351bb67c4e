#include <gtest/gtest.h>

#include <future>

#include "base/error.h"
#include "tests/tiers/tiered_fixture.h"
#include "tiers/tiered_store.h"

namespace headrace::tiers {
namespace {

using test::TieredTest;

/// An object on host whose copy to the device has been posted and waits for open().
class ArrivalLeaseTest : public TieredTest {
 protected:
  ArrivalLeaseTest() {
    place_and_write(object_, Tier::host, kSize, 1);
    down_.run_on_host([gate = gate_.get_future().share()] { gate.wait(); });
    arrival_ = start(object_, Tier::host, Tier::device, 0);
  }
  ~ArrivalLeaseTest() override { open(); }

  void open() {
    if (!is_open_) {
      is_open_ = true;
      gate_.set_value();
    }
  }
  void fail_copy() {
    down_.fail_next();
    open();
    EXPECT_THROW(arrival_.wait(), IoError);
  }
  Lease lease(LeaseMode mode) {
    return store_->acquire(object_, Tier::device, mode, LeaseOrder::in_stream);
  }
  CopyState on_device() const { return store_->state(object_, Tier::device); }

  ObjectId object_ = add("a");
  std::promise<void> gate_;
  bool is_open_ = false;
  Completion arrival_ = Completion::done();
};

TEST_F(ArrivalLeaseTest, AStreamMayBePutBehindACopy) {
  const Lease first = lease(LeaseMode::read);
  const Lease second = lease(LeaseMode::read);
  ASSERT_NE(first.behind(), nullptr);
  ASSERT_NE(second.behind(), nullptr);
  EXPECT_FALSE(first.behind()->is_done());
  EXPECT_EQ(on_device(), CopyState::in_flight);
  open();
  first.behind()->wait();
  EXPECT_TRUE(test::has_pattern(first.bytes(), 1));
  arrival_.wait();
  EXPECT_EQ(on_device(), CopyState::valid);
  EXPECT_EQ(lease(LeaseMode::read).behind(), nullptr) << "it is there";
}

TEST_F(ArrivalLeaseTest, OthersWaitForTheEndOfTheCopy) {
  EXPECT_THROW(store_->acquire(object_, Tier::device, LeaseMode::read), InternalError);
  EXPECT_THROW(store_->drop(object_, Tier::device), InternalError);
  EXPECT_THROW(start(object_, Tier::device, Tier::host, kSize), InternalError);
  EXPECT_THROW(store_->acquire(object_, Tier::host, LeaseMode::update), InternalError);
}

TEST_F(ArrivalLeaseTest, AValueFromNvmeIsNotOfTheStream) {
  const ObjectId b = add("b");
  place_and_write(b, Tier::host, 2 * kSize, 2);
  transfer(b, Tier::host, Tier::nvme, 0);
  store_->drop(b, Tier::host);
  io_->close_gate();
  const Completion read = start(b, Tier::nvme, Tier::host, 2 * kSize);
  EXPECT_THROW(store_->acquire(b, Tier::host, LeaseMode::read, LeaseOrder::in_stream),
               InternalError);
  io_->open_gate();
  read.wait();
}

/// The ends of two streams are told in any order.
TEST_F(ArrivalLeaseTest, AnUpdateMayEndBeforeTheCopyIsKnownToHave) {
  lease(LeaseMode::update).release();
  EXPECT_EQ(on_device(), CopyState::in_flight);
  EXPECT_EQ(store_->state(object_, Tier::host), CopyState::stale);
  open();
  arrival_.wait();
  EXPECT_EQ(on_device(), CopyState::valid);
  EXPECT_EQ(store_->state(object_, Tier::host), CopyState::stale);
  transfer(object_, Tier::device, Tier::host, kSize);
  EXPECT_TRUE(holds(object_, Tier::host, 1));
}

TEST_F(ArrivalLeaseTest, TheSlotOfAFailedCopyIsKeptForAsLongAsItIsLeased) {
  Lease read = lease(LeaseMode::read);
  Lease update = lease(LeaseMode::update);
  fail_copy();
  EXPECT_THROW(read.behind()->wait(), IoError);
  EXPECT_THROW(lease(LeaseMode::read), InternalError);
  EXPECT_THROW(start(object_, Tier::host, Tier::device, 0).wait(), IoError) << "the same one";
  read.release();
  EXPECT_EQ(store_->used(Tier::device), Bytes(kSize));
  update.release();
  EXPECT_EQ(store_->used(Tier::device), Bytes(0));
  EXPECT_EQ(on_device(), CopyState::absent);
  EXPECT_TRUE(holds(object_, Tier::host, 1)) << "no new value came to be";
}

TEST_F(ArrivalLeaseTest, AFailedCopyThatNobodyLeasesIsGone) {
  fail_copy();
  EXPECT_EQ(store_->used(Tier::device), Bytes(0));
  EXPECT_EQ(on_device(), CopyState::absent);
}

}  // namespace
}  // namespace headrace::tiers
