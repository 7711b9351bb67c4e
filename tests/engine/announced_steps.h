#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/announced_step.h"
#include "scheduler/placement.h"
#include "tests/engine/three_tiers.h"

namespace headrace::engine::test {

inline constexpr int64_t kSlot = 4096;

using Operations = std::vector<scheduler::Operation>;

/// Folds everything an operation reads into a digest, and fills what it writes from that digest, so
/// that a single wrong byte anywhere changes everything after it.
inline uint64_t mix(const scheduler::Operation& operation,
                    const std::vector<std::span<std::byte>>& uses) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL;
  for (const char letter : operation.name) {
    hash = (hash ^ static_cast<uint64_t>(letter)) * 0x100000001B3ULL;
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    if (operation.uses[i].access == scheduler::Access::write) {
      continue;
    }
    for (const std::byte b : uses[i]) {
      hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001B3ULL;
    }
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    if (operation.uses[i].access == scheduler::Access::read) {
      continue;
    }
    Random bytes(hash, i);
    for (std::byte& b : uses[i]) {
      b = static_cast<std::byte>(bytes.next_u32());
    }
  }
  return hash;
}

/// Announced steps over a real store, beside the same operations on objects that simply lie in
/// memory and run one after another.
class AnnouncedSteps {
 public:
  /// Homes on device and host are packed in the order of the table.
  AnnouncedSteps(const std::vector<scheduler::ObjectFacts>& objects, Bytes device, Bytes host,
                 std::shared_ptr<aio::IoEngine> io)
      : AnnouncedSteps(objects, {device, host, Bytes(kSlot)}, packed_homes(objects),
                       std::move(io)) {}
  AnnouncedSteps(std::vector<scheduler::ObjectFacts> objects, const scheduler::Budgets& budgets,
                 const std::vector<scheduler::Residency>& homes, std::shared_ptr<aio::IoEngine> io)
      : objects_(std::move(objects)),
        tiers_(budgets.device, budgets.host, std::move(io)),
        executor_(*tiers_.store, *tiers_.compute),
        budgets_(budgets) {
    for (const scheduler::ObjectFacts& facts : objects_) {
      tiers_.store->add({facts.name, facts.size, facts.home.has_value()});
      memory_.emplace_back(static_cast<size_t>(facts.size.count()));
    }
    for (const scheduler::Residency& home : homes) {
      tiers_.store->place(home.object, home.tier, home.offset);
    }
  }

  AnnouncedOptions options() {
    AnnouncedOptions options;
    options.budgets = budgets_;
    options.warn = [this](const std::string& text) { warnings_.push_back(text); };
    return options;
  }
  /// Steps are told to this from now on.
  void use(AnnouncedOptions options) {
    step_ = std::make_unique<AnnouncedStep>(executor_, objects_, std::move(options));
  }
  AnnouncedStep& step() {
    if (step_ == nullptr) {
      use(options());
    }
    return *step_;
  }

  /// Announces the operation with a body that mixes its bytes; the digest is checked at the end.
  /// Where that throws, the operation has not taken place.
  void announce(const scheduler::Operation& operation) {
    auto digest = std::make_shared<uint64_t>();
    step().run(operation, [this, operation, digest](UseBytes bytes) {
      const auto work = [operation, digest,
                         spans = std::vector<std::span<std::byte>>(bytes.begin(), bytes.end())] {
        *digest = mix(operation, spans);
      };
      if (operation.lane == scheduler::Lane::compute) {
        tiers_.compute->run_on_host(work);
      } else {
        work();
      }
    });
    std::vector<std::span<std::byte>> uses;
    for (const scheduler::Use& use : operation.uses) {
      uses.emplace_back(memory_[index_of(use.object)]);
    }
    expected_.push_back(mix(operation, uses));
    digests_.push_back(digest);
  }

  AnnouncedReport end() {
    const AnnouncedReport report = step().end();
    check();
    return report;
  }

  AnnouncedReport run(const Operations& operations) {
    step().begin();
    for (const scheduler::Operation& operation : operations) {
      announce(operation);
    }
    return end();
  }

  /// What every operation has seen, and what lies at the homes.
  void check() {
    for (size_t i = 0; i < digests_.size(); ++i) {
      EXPECT_EQ(*digests_[i], expected_[i]) << "operation " << i;
    }
    digests_.clear();
    expected_.clear();
    for (uint32_t o = 0; o < objects_.size(); ++o) {
      check_home(ObjectId{o});
    }
    EXPECT_LE(tiers_.host_arena.high_water(), budgets_.host);
  }

  Tiers& tiers() { return tiers_; }
  Executor& executor() { return executor_; }
  const scheduler::Budgets& budgets() const { return budgets_; }
  const std::vector<scheduler::ObjectFacts>& objects() const { return objects_; }
  std::vector<std::string>& warnings() { return warnings_; }

 private:
  static std::vector<scheduler::Residency> packed_homes(
      const std::vector<scheduler::ObjectFacts>& objects) {
    std::vector<scheduler::Residency> homes;
    int64_t top[2] = {};
    for (uint32_t o = 0; o < objects.size(); ++o) {
      if (objects[o].home && *objects[o].home != Tier::nvme) {
        int64_t& offset = top[static_cast<size_t>(*objects[o].home)];
        homes.push_back({ObjectId{o}, *objects[o].home, offset, false});
        offset += align_up(objects[o].size.count(), kSlot);
      }
    }
    return homes;
  }

  void check_home(ObjectId object) {
    const scheduler::ObjectFacts& facts = objects_[index_of(object)];
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const tiers::CopyState state = tiers_.store->state(object, tier);
      if (!facts.home) {
        EXPECT_EQ(state, tiers::CopyState::absent) << facts.name << " on " << to_string(tier);
      } else {
        EXPECT_TRUE(state == tiers::CopyState::valid || facts.home != tier) << facts.name;
      }
    }
    if (!facts.home) {
      return;
    }
    const auto& expected = memory_[index_of(object)];
    std::vector<std::byte> found(expected.size());
    if (*facts.home == Tier::nvme) {
      const auto aligned = tiers_.device->allocate(facts.size);
      const std::span<std::byte> bytes(aligned->data(), expected.size());
      tiers_.extents->read(facts.name, bytes, aio::IoClass::demand).wait();
      found.assign(bytes.begin(), bytes.end());
    } else {
      const auto lease = tiers_.store->acquire(object, *facts.home, tiers::LeaseMode::read);
      found.assign(lease.bytes().begin(), lease.bytes().end());
    }
    EXPECT_TRUE(found == expected) << "the home of " << facts.name;
  }

  std::vector<scheduler::ObjectFacts> objects_;
  Tiers tiers_;
  Executor executor_;
  scheduler::Budgets budgets_;
  std::vector<std::vector<std::byte>> memory_;  ///< of the run without tiers
  std::vector<uint64_t> expected_;
  std::vector<std::shared_ptr<uint64_t>> digests_;
  std::vector<std::string> warnings_;
  std::unique_ptr<AnnouncedStep> step_;
};

}  // namespace headrace::engine::test
