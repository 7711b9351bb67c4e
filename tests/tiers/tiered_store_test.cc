#include "tiers/tiered_store.h"

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "base/error.h"
#include "tests/tiers/tiered_fixture.h"
#include "tiers/residency.h"

namespace headrace::tiers {
namespace {

using test::Fault;
using test::TieredTest;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(TieredTest, CarriesAValueDownAndUpAgain) {
  const ObjectId a = add("a");
  place_and_write(a, Tier::device, 0, 1);
  transfer(a, Tier::device, Tier::host, kSize);
  transfer(a, Tier::host, Tier::nvme, 0);
  EXPECT_EQ(store_->offset(a, Tier::host), kSize);
  EXPECT_EQ(store_->offset(a, Tier::nvme), std::nullopt);
  store_->drop(a, Tier::device);
  store_->drop(a, Tier::host);
  EXPECT_EQ(store_->offset(a, Tier::host), std::nullopt);
  EXPECT_EQ(device_arena_.used() + host_arena_.used(), Bytes(0));
  transfer(a, Tier::nvme, Tier::host, 0);
  transfer(a, Tier::host, Tier::device, kSize);
  EXPECT_TRUE(holds(a, Tier::device, 1));
  const TierTraffic traffic = store_->traffic();
  EXPECT_EQ(traffic.device_to_host, kSize);
  EXPECT_EQ(traffic.host_to_device, kSize);
  EXPECT_EQ(traffic.nvme_write, kSize);
  EXPECT_EQ(traffic.nvme_read, kSize);
}

TEST_F(TieredTest, AWriteMakesTheOtherCopiesStale) {
  const ObjectId a = everywhere("a", 1);
  write(a, Tier::host, 2);
  EXPECT_EQ(store_->state(a, Tier::host), CopyState::valid);
  EXPECT_EQ(store_->state(a, Tier::device), CopyState::stale);
  EXPECT_EQ(store_->state(a, Tier::nvme), CopyState::stale);
  EXPECT_THROW(store_->acquire(a, Tier::device, LeaseMode::read), InternalError);
  EXPECT_THROW(store_->acquire(a, Tier::device, LeaseMode::update), InternalError);
}

TEST_F(TieredTest, TransfersRefreshStaleCopiesInTheirSlots) {
  const ObjectId a = everywhere("a", 1);
  write(a, Tier::host, 2);
  EXPECT_THROW(store_->transfer(a, Tier::host, Tier::device, kSize, aio::IoClass::demand),
               InternalError)
      << "its slot is at 0";
  transfer(a, Tier::host, Tier::device, 0);
  transfer(a, Tier::host, Tier::nvme, 0);
  EXPECT_TRUE(holds(a, Tier::device, 2));
  store_->drop(a, Tier::host);
  transfer(a, Tier::nvme, Tier::host, kSize);
  EXPECT_TRUE(holds(a, Tier::host, 2));
}

TEST_F(TieredTest, AnEmptyHomeSlotTakesAValuePublishedElsewhere) {
  const ObjectId a = add("a");
  store_->place(a, Tier::device, 0);
  place_and_write(a, Tier::host, 0, 1);
  transfer(a, Tier::host, Tier::device, 0);
  EXPECT_TRUE(holds(a, Tier::device, 1));
}

TEST_F(TieredTest, ASecondRequestJoinsTheFirst) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::host);
  io_->close_gate();
  const Completion first = start(a, Tier::nvme, Tier::host, kSize);
  const Completion second = start(a, Tier::nvme, Tier::host, kSize);
  EXPECT_EQ(store_->state(a, Tier::host), CopyState::in_flight);
  EXPECT_FALSE(second.is_done());
  EXPECT_THROW(start(a, Tier::nvme, Tier::host, 0), InternalError) << "another slot";
  io_->open_gate();
  first.wait();
  second.wait();
  EXPECT_TRUE(start(a, Tier::nvme, Tier::host, kSize).is_done());
  EXPECT_EQ(store_->traffic().nvme_read, kSize) << "moved once";
}

TEST_F(TieredTest, TheStateIsSetBeforeTheCompletionEnds) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::device);
  Promise checked;
  start(a, Tier::host, Tier::device, 0).on_done([&](const std::exception_ptr& error) {
    EXPECT_EQ(error, nullptr);
    EXPECT_EQ(store_->state(a, Tier::device), CopyState::valid);
    Lease lease = store_->acquire(a, Tier::device, LeaseMode::update);
    lease.release();
    store_->drop(a, Tier::host);
    checked.set_done();
  });
  checked.completion().wait();
}

TEST_F(TieredTest, PinnedCopiesStay) {
  const ObjectId a = everywhere("a", 1);
  Lease lease = store_->acquire(a, Tier::host, LeaseMode::read);
  Lease second = store_->acquire(a, Tier::host, LeaseMode::read);
  EXPECT_THROW(store_->drop(a, Tier::host), InternalError);
  EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::write), InternalError);
  lease.release();
  EXPECT_THROW(store_->drop(a, Tier::host), InternalError);
  second.release();
  store_->drop(a, Tier::host);
}

TEST_F(TieredTest, ATransferPinsItsSource) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::nvme);
  io_->close_gate();
  const Completion end = start(a, Tier::host, Tier::nvme, 0);
  EXPECT_THROW(store_->drop(a, Tier::host), InternalError);
  EXPECT_THROW(store_->drop(a, Tier::nvme), InternalError);
  EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::update), InternalError);
  EXPECT_EQ(store_->acquire(a, Tier::host, LeaseMode::read).bytes().size(), size_t{kSize});
  io_->open_gate();
  end.wait();
  store_->drop(a, Tier::host);
}

TEST_F(TieredTest, AnOutdatedValueInFlightArrivesStale) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::nvme);
  io_->close_gate();
  const Completion end = start(a, Tier::host, Tier::nvme, 0);
  write(a, Tier::device, 2);
  EXPECT_EQ(store_->state(a, Tier::nvme), CopyState::in_flight);
  EXPECT_EQ(store_->state(a, Tier::host), CopyState::stale);
  EXPECT_THROW(store_->drop(a, Tier::host), InternalError) << "still read by the transfer";
  io_->open_gate();
  end.wait();
  EXPECT_EQ(store_->state(a, Tier::nvme), CopyState::stale);
  transfer(a, Tier::device, Tier::host, 0);
  transfer(a, Tier::host, Tier::nvme, 0);
  EXPECT_TRUE(holds(a, Tier::host, 2));
}

TEST_F(TieredTest, WriteLeasesExclude) {
  const ObjectId a = everywhere("a", 1);
  const Lease lease = store_->acquire(a, Tier::host, LeaseMode::update);
  EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::read), InternalError);
  EXPECT_THROW(store_->acquire(a, Tier::device, LeaseMode::write), InternalError);
  EXPECT_THROW(start(a, Tier::host, Tier::device, 0), InternalError) << "half-written source";
  EXPECT_THROW(start(a, Tier::nvme, Tier::host, 0), InternalError) << "target being written";
  EXPECT_THROW(store_->drop(a, Tier::host), InternalError);
  store_->drop(a, Tier::device);
}

TEST_F(TieredTest, LeasesInAStreamFollowEachOther) {
  constexpr auto kInStream = LeaseOrder::in_stream;
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::device);
  store_->place(a, Tier::device, 0);
  EXPECT_THROW(store_->acquire(a, Tier::device, LeaseMode::read, kInStream), InternalError)
      << "nobody writes it";
  Lease write = store_->acquire(a, Tier::device, LeaseMode::write, kInStream);
  Lease read = store_->acquire(a, Tier::device, LeaseMode::read, kInStream);
  Lease update = store_->acquire(a, Tier::device, LeaseMode::update, kInStream);
  EXPECT_THROW(store_->acquire(a, Tier::device, LeaseMode::read), InternalError);
  EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::update, kInStream), InternalError);
  EXPECT_EQ(store_->state(a, Tier::device), CopyState::empty);
  EXPECT_EQ(store_->state(a, Tier::host), CopyState::valid);

  write.release();
  EXPECT_EQ(store_->state(a, Tier::device), CopyState::valid);
  EXPECT_EQ(store_->state(a, Tier::host), CopyState::stale);
  EXPECT_THROW(start(a, Tier::device, Tier::host, 0), InternalError) << "the update is to come";
  read.release();
  EXPECT_THROW(store_->drop(a, Tier::device), InternalError);
  update.release();
  EXPECT_EQ(store_->acquire(a, Tier::device, LeaseMode::read).bytes().size(), size_t{kSize});
  store_->drop(a, Tier::device);
}

TEST_F(TieredTest, ALeaseInTheStreamWaitsForNoOther) {
  constexpr auto kInStream = LeaseOrder::in_stream;
  const ObjectId a = everywhere("a", 1);
  {
    const Lease alone = store_->acquire(a, Tier::host, LeaseMode::read);
    const Lease read = store_->acquire(a, Tier::host, LeaseMode::read, kInStream);
    EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::update, kInStream), InternalError);
  }
  {
    const Lease alone = store_->acquire(a, Tier::host, LeaseMode::update);
    EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::read, kInStream), InternalError);
    EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::update, kInStream), InternalError);
  }
  store_->drop(a, Tier::nvme);
  io_->close_gate();
  const Completion end = start(a, Tier::host, Tier::nvme, 0);
  EXPECT_THROW(store_->acquire(a, Tier::host, LeaseMode::update, kInStream), InternalError);
  io_->open_gate();
  end.wait();
  EXPECT_EQ(store_->acquire(a, Tier::host, LeaseMode::update, kInStream).bytes().size(),
            size_t{kSize});
}

TEST_F(TieredTest, LeasesMoveAndReleaseOnce) {
  const ObjectId a = everywhere("a", 1);
  const ObjectId b = everywhere("b", 2);
  Lease lease = store_->acquire(a, Tier::host, LeaseMode::read);
  Lease moved = std::move(lease);
  lease.release();  // NOLINT(bugprone-use-after-move): it is empty now, and says so
  EXPECT_TRUE(lease.bytes().empty());
  EXPECT_THROW(store_->drop(a, Tier::host), InternalError);
  moved = store_->acquire(b, Tier::host, LeaseMode::read);
  store_->drop(a, Tier::host);
  moved.release();
  moved.release();
  store_->drop(b, Tier::host);
}

TEST_F(TieredTest, AFailedReadLeavesTheSource) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::host);
  io_->set_hook([](const aio::IoRequest&) { return Fault::fail; });
  EXPECT_THROW(transfer(a, Tier::nvme, Tier::host, 0), IoError);
  EXPECT_EQ(store_->state(a, Tier::host), CopyState::absent);
  EXPECT_EQ(store_->state(a, Tier::nvme), CopyState::valid);
  EXPECT_EQ(host_arena_.used(), Bytes(0));
  io_->set_hook({});
  transfer(a, Tier::nvme, Tier::host, 0);
  EXPECT_TRUE(holds(a, Tier::host, 1));
}

TEST_F(TieredTest, AFailedWriteLeavesTheSource) {
  for (const bool persistent : {false, true}) {
    const ObjectId a = add(persistent ? "p" : "s", persistent);
    place_and_write(a, Tier::host, 0, 1);
    transfer(a, Tier::host, Tier::nvme, 0);
    write(a, Tier::host, 2);
    io_->set_hook([](const aio::IoRequest&) { return Fault::cut_short; });
    EXPECT_THROW(transfer(a, Tier::host, Tier::nvme, 0), IoError);
    io_->set_hook({});
    EXPECT_EQ(store_->state(a, Tier::nvme), CopyState::absent);
    EXPECT_EQ(extents_->contains(persistent ? "p" : "s"), persistent);
    EXPECT_TRUE(holds(a, Tier::host, 2));
    transfer(a, Tier::host, Tier::nvme, 0);
    store_->drop(a, Tier::host);
    transfer(a, Tier::nvme, Tier::host, 0);
    EXPECT_TRUE(holds(a, Tier::host, 2));
    store_->drop(a, Tier::host);
  }
}

TEST_F(TieredTest, AFailedCopyLeavesTheSource) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::device);
  down_.fail_next();
  EXPECT_THROW(transfer(a, Tier::host, Tier::device, 0), IoError);
  EXPECT_EQ(store_->state(a, Tier::device), CopyState::absent);
  EXPECT_EQ(device_arena_.used(), Bytes(0));
  EXPECT_TRUE(holds(a, Tier::host, 1));
  EXPECT_EQ(store_->traffic().host_to_device, kSize) << "that of the first copy alone";
}

TEST_F(TieredTest, AFullDiskLeavesTheSource) {
  const ObjectId a = add("a");
  place_and_write(a, Tier::host, 0, 1);
  io_->set_disk_size(Bytes(0));
  EXPECT_THROW(transfer(a, Tier::host, Tier::nvme, 0), IoError);
  EXPECT_EQ(store_->state(a, Tier::nvme), CopyState::absent);
  EXPECT_TRUE(holds(a, Tier::host, 1));
}

TEST_F(TieredTest, KnowsValuesThatTheExtentStoreHolds) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::host);
  store_->drop(a, Tier::device);
  remake();
  const ObjectId again = store_->add({"a", Bytes(kSize), true});
  EXPECT_EQ(store_->state(again, Tier::nvme), CopyState::valid);
  transfer(again, Tier::nvme, Tier::host, 0);
  EXPECT_TRUE(holds(again, Tier::host, 1));
}

TEST_F(TieredTest, MisuseNamesObjectTierAndState) {
  const ObjectId a = add("blocks.7");
  const auto text = [&](const auto& action) { return test::message_of<InternalError>(action); };
  EXPECT_THAT(text([&] { store_->acquire(a, Tier::host, LeaseMode::read); }),
              AllOf(HasSubstr("read lease"), HasSubstr("'blocks.7'"), HasSubstr("host"),
                    HasSubstr("absent")));
  EXPECT_THAT(text([&] { start(a, Tier::device, Tier::nvme, 0); }),
              AllOf(HasSubstr("'blocks.7'"), HasSubstr("device"), HasSubstr("nvme")));
  EXPECT_THAT(text([&] { store_->place(a, Tier::nvme, 0); }), HasSubstr("no arena"));
  EXPECT_THAT(text([&] { store_->acquire(a, Tier::nvme, LeaseMode::read); }),
              HasSubstr("no arena"));
  EXPECT_THROW(store_->add({"blocks.7", Bytes(kSize), true}), InternalError);
  EXPECT_THROW(store_->state(ObjectId{99}, Tier::host), InternalError);
  store_->place(a, Tier::host, 0);
  EXPECT_THROW(store_->place(add("b"), Tier::host, 4096), InternalError) << "overlaps";
}

TEST_F(TieredTest, WorksWithoutDeviceAndNvme) {
  TieredStore::Parts parts;
  parts.host_arena = &host_arena_;
  TieredStore store(parts);
  const ObjectId a = store.add({"a", Bytes(kSize), false});
  store.place(a, Tier::host, 0);
  store.acquire(a, Tier::host, LeaseMode::write).release();
  EXPECT_THROW(store.transfer(a, Tier::host, Tier::device, 0, aio::IoClass::demand), InternalError);
  EXPECT_THROW(store.transfer(a, Tier::host, Tier::nvme, 0, aio::IoClass::demand), InternalError);
  EXPECT_EQ(store.state(a, Tier::host), CopyState::valid);
  EXPECT_EQ(store.state(a, Tier::nvme), CopyState::absent);
  store.drop(a, Tier::host);
}

TEST_F(TieredTest, DestructorWaitsForTransfers) {
  const ObjectId a = everywhere("a", 1);
  store_->drop(a, Tier::host);
  io_->close_gate();
  const Completion end = start(a, Tier::nvme, Tier::host, 0);
  std::thread opener([&] { io_->open_gate(); });
  store_.reset();
  EXPECT_TRUE(end.is_done());
  opener.join();
}

}  // namespace
}  // namespace headrace::tiers
