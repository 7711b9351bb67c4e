#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "tests/tiers/tiered_fixture.h"

namespace headrace::tiers {
namespace {

/// Free slots of an arena, shared by the threads of a script.
class Slots {
 public:
  explicit Slots(int64_t count, int64_t size) : size_(size) {
    for (int64_t i = 0; i < count; ++i) {
      free_.insert(i);
    }
  }
  std::optional<int64_t> take(Random& random) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return std::nullopt;
    }
    auto slot = std::next(free_.begin(), static_cast<int64_t>(random.below(free_.size())));
    const int64_t offset = *slot * size_;
    free_.erase(slot);
    return offset;
  }
  void give_back(int64_t offset) {
    const std::lock_guard lock(mutex_);
    free_.insert(offset / size_);
  }

 private:
  std::mutex mutex_;
  int64_t size_;
  std::set<int64_t> free_;
};

/// Random legal decisions about some objects, checked against a model of each copy.
class Script {
 public:
  Script(TieredStore& store, Slots& device, Slots& host, uint64_t seed, bool may_fail)
      : store_(store), device_(device), host_(host), random_(seed, 4), may_fail_(may_fail) {
    for (int i = 0; i < 5; ++i) {
      objects_.emplace_back();
      objects_.back().id = store_.add({fmt::format("t{}.{}", seed, i), Bytes(16384), i % 2 == 0});
    }
  }

  void step() {
    Object& object = objects_[random_.below(objects_.size())];
    const Tier tier{static_cast<uint8_t>(random_.below(3))};
    switch (random_.below(6)) {
      case 0:
        return drop(object, tier);
      case 1:
        return write(object, tier == Tier::nvme ? Tier::host : tier);
      case 2:
        return read(object, tier);
      default:
        return move(object, tier);
    }
  }

  void finish() {
    for (Object& object : objects_) {
      for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
        read(object, tier);
        drop(object, tier);
      }
    }
  }
  int failures() const { return failures_; }

 private:
  struct Object {
    ObjectId id{};
    uint64_t version = 0;             ///< 0: no value yet
    std::map<Tier, uint64_t> copies;  ///< version of each copy there is
    std::map<Tier, int64_t> slots;
  };

  void drop(Object& object, Tier tier) {
    store_.drop(object.id, tier);
    object.copies.erase(tier);
    give_back(object, tier);
  }

  void write(Object& object, Tier tier) {
    if (!object.slots.contains(tier)) {
      const auto slot = take(tier);
      if (!slot) {
        return;
      }
      store_.place(object.id, tier, *slot);
      object.slots[tier] = *slot;
    }
    const Lease lease = store_.acquire(object.id, tier, LeaseMode::write);
    object.version = random_.next_u64() | 1U;
    test::fill_pattern(lease.bytes(), object.version);
    object.copies[tier] = object.version;
  }

  void read(Object& object, Tier tier) {
    const bool is_current = object.version != 0 && object.copies.contains(tier) &&
                            object.copies[tier] == object.version;
    ASSERT_EQ(store_.state(object.id, tier) == CopyState::valid, is_current);
    if (is_current && tier != Tier::nvme) {
      const Lease lease = store_.acquire(object.id, tier, LeaseMode::read);
      ASSERT_TRUE(test::has_pattern(lease.bytes(), object.version));
    }
  }

  void move(Object& object, Tier to) {
    const Tier from =
        to == Tier::host ? (random_.below(2) == 0 ? Tier::device : Tier::nvme) : Tier::host;
    if (object.version == 0 || !object.copies.contains(from) ||
        object.copies[from] != object.version) {
      return;
    }
    if (to != Tier::nvme && !object.slots.contains(to)) {
      const auto slot = take(to);
      if (!slot) {
        return;
      }
      object.slots[to] = *slot;
    }
    const int64_t offset = to == Tier::nvme ? 0 : object.slots[to];
    const Completion first = store_.transfer(object.id, from, to, offset, aio::IoClass::prefetch);
    const Completion second = store_.transfer(object.id, from, to, offset, aio::IoClass::demand);
    try {
      first.wait();
      second.wait();
      object.copies[to] = object.version;
    } catch (const IoError&) {
      // The second joined the first, or began after the first had failed; either way wait for it.
      ASSERT_TRUE(may_fail_);
      ++failures_;
      settle(second);
      if (store_.state(object.id, to) == CopyState::valid) {
        object.copies[to] = object.version;
      } else {
        object.copies.erase(to);
        give_back(object, to);
      }
    }
  }

  static void settle(const Completion& completion) {
    try {
      completion.wait();
    } catch (const IoError&) {
      // The state says what became of it.
      return;
    }
  }

  std::optional<int64_t> take(Tier tier) {
    return tier == Tier::device ? device_.take(random_) : host_.take(random_);
  }
  void give_back(Object& object, Tier tier) {
    const auto slot = object.slots.find(tier);
    if (slot != object.slots.end()) {
      (tier == Tier::device ? device_ : host_).give_back(slot->second);
      object.slots.erase(slot);
    }
  }

  TieredStore& store_;
  Slots& device_;
  Slots& host_;
  Random random_;
  bool may_fail_;
  int failures_ = 0;
  std::vector<Object> objects_;
};

class TieredScriptTest : public test::TieredTest {
 protected:
  int run(int thread_count, int steps, bool may_fail) {
    Slots device(6, kSize);
    Slots host(9, kSize);
    std::vector<std::unique_ptr<Script>> scripts;
    for (int t = 0; t < thread_count; ++t) {
      scripts.push_back(
          std::make_unique<Script>(*store_, device, host, static_cast<uint64_t>(t), may_fail));
    }
    std::vector<std::thread> threads;
    for (auto& script : scripts) {
      threads.emplace_back([&script, steps] {
        for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
          script->step();
        }
        script->finish();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(device_arena_.used(), Bytes(0));
    EXPECT_EQ(host_arena_.used(), Bytes(0));
    EXPECT_LE(host_arena_.high_water(), Bytes(9 * kSize));
    EXPECT_LE(device_arena_.high_water(), Bytes(6 * kSize));
    int failures = 0;
    for (const auto& script : scripts) {
      failures += script->failures();
    }
    return failures;
  }
};

TEST_F(TieredScriptTest, RandomDecisionsOfSeveralThreads) {
  EXPECT_EQ(run(4, 1500, false), 0);
  EXPECT_GT(store_->traffic().nvme_read, 0);
  EXPECT_GT(store_->traffic().device_to_host, 0);
}

TEST_F(TieredScriptTest, RandomDecisionsWithFailingTransfers) {
  io_->set_hook([random = std::make_shared<Random>(1, 5)](const aio::IoRequest&) {
    const auto choice = random->below(20);
    return choice == 0   ? test::Fault::fail
           : choice == 1 ? test::Fault::cut_short
           : choice == 2 ? test::Fault::corrupt
                         : test::Fault::none;
  });
  EXPECT_GT(run(3, 1500, true), 10);
}

}  // namespace
}  // namespace headrace::tiers
