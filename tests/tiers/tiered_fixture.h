#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tests/tiers/fake_io.h"
#include "tests/tiers/fake_stream.h"
#include "tests/tiers/support.h"
#include "tiers/tiered_store.h"

namespace headrace::tiers::test {

/// A tiered store over fakes, with room for kSlots objects on device and host.
class TieredTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSize = 16384;
  static constexpr int64_t kSlots = 64;

  TieredTest() {
    ExtentStoreOptions options;
    options.paths = {folder_.path()};
    options.run_id = "tiered";
    options.disk_budget = Bytes(256 << 20);
    options.growth_step = Bytes(1 << 20);
    extents_ = ExtentStore::create(options, io_);
    remake();
  }

  /// With direct reads, where there is a reader.
  void remake(device::DirectReader* direct = nullptr) {
    store_.reset();
    TieredStore::Parts parts;
    parts.device_arena = &device_arena_;
    parts.host_arena = &host_arena_;
    parts.extents = extents_;
    parts.host_to_device = &down_;
    parts.device_to_host = &up_;
    parts.direct = direct;
    store_ = std::make_unique<TieredStore>(parts);
  }

  ObjectId add(const std::string& name, bool persistent = true) {
    return store_->add({name, Bytes(kSize), persistent});
  }
  void write(ObjectId object, Tier tier, uint64_t seed) {
    const Lease lease = store_->acquire(object, tier, LeaseMode::write);
    fill_pattern(lease.bytes(), seed);
  }
  void place_and_write(ObjectId object, Tier tier, int64_t offset, uint64_t seed) {
    store_->place(object, tier, offset);
    write(object, tier, seed);
  }
  Completion start(ObjectId object, Tier from, Tier to, int64_t offset) {
    return store_->transfer(object, from, to, offset, aio::IoClass::demand);
  }
  void transfer(ObjectId object, Tier from, Tier to, int64_t offset) {
    start(object, from, to, offset).wait();
  }
  bool holds(ObjectId object, Tier tier, uint64_t seed) {
    const Lease lease = store_->acquire(object, tier, LeaseMode::read);
    return has_pattern(lease.bytes(), seed);
  }
  /// An object with valid copies in all tiers, in the next free slots.
  ObjectId everywhere(const std::string& name, uint64_t seed) {
    const ObjectId object = add(name);
    const int64_t offset = host_arena_.used().count();
    place_and_write(object, Tier::host, offset, seed);
    transfer(object, Tier::host, Tier::device, offset);
    transfer(object, Tier::host, Tier::nvme, 0);
    return object;
  }

  headrace::test::TemporaryFolder folder_;
  std::shared_ptr<FakeIo> io_ = std::make_shared<FakeIo>();
  std::shared_ptr<ExtentStore> extents_;
  Buffer device_memory_{kSize * kSlots};
  Buffer host_memory_{kSize * kSlots};
  Arena device_arena_{Tier::device, device_memory_.data(), Bytes(kSize* kSlots)};
  Arena host_arena_{Tier::host, host_memory_.data(), Bytes(kSize* kSlots)};
  FakeStream down_;
  FakeStream up_;
  std::unique_ptr<TieredStore> store_;
};

}  // namespace headrace::tiers::test
