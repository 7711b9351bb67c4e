#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "tests/tiers/tiered_fixture.h"
#include "tiers/residency.h"

namespace headrace::tiers {
namespace {

constexpr CopyState kStates[] = {CopyState::absent, CopyState::empty, CopyState::in_flight,
                                 CopyState::valid, CopyState::stale};
constexpr CopyEvent kEvents[] = {
    CopyEvent::place,       CopyEvent::transfer_in,  CopyEvent::transfer_out, CopyEvent::lease_read,
    CopyEvent::lease_write, CopyEvent::lease_update, CopyEvent::drop};

/// The table of tiers/tiered_store.h, written down once more: one letter per event, in the order of
/// kEvents, for the state that follows (A E F V S), or a dash for an error.
const std::map<CopyState, std::string> kExpected = {
    {CopyState::absent, "EF----A"},    {CopyState::empty, "-F--V-A"},
    {CopyState::in_flight, "-F-----"}, {CopyState::valid, "-VVVVVA"},
    {CopyState::stale, "-F--V-A"},
};

CopyState state_of(char letter) {
  return kStates[std::string("AEFVS").find(letter)];
}

TEST(StateTable, IsTheDocumentedOne) {
  for (const CopyState state : kStates) {
    for (size_t i = 0; i < std::size(kEvents); ++i) {
      const char expected = kExpected.at(state)[i];
      const Transition found = transition(state, kEvents[i]);
      EXPECT_EQ(found.allowed, expected != '-') << to_string(state) << " " << to_string(kEvents[i]);
      if (found.allowed) {
        EXPECT_EQ(found.next, state_of(expected))
            << to_string(state) << " " << to_string(kEvents[i]);
      }
    }
  }
}

/// Each state of the copy in one tier, each event, through the store itself.
class StateTableTest : public test::TieredTest {
 protected:
  static Tier other_of(Tier tier) { return tier == Tier::host ? Tier::device : Tier::host; }
  static int64_t offset() { return 0; }

  test::FakeStream& stream_into(Tier tier) { return tier == Tier::device ? down_ : up_; }

  /// A new object whose copy in `tier` is in `state`. A transfer needs a valid value next door,
  /// so there is one wherever the state allows.
  ObjectId make(CopyState state, Tier tier, Promise& gate) {
    const ObjectId object = add(fmt::format("o{}", count_++));
    const Tier other = other_of(tier);
    switch (state) {
      case CopyState::absent:
        put(object, other);
        break;
      case CopyState::empty:
        put(object, other);
        store_->place(object, tier, offset());
        break;
      case CopyState::valid:
        put(object, other);
        transfer(object, other, tier, offset());
        break;
      case CopyState::stale:
        put(object, other);
        transfer(object, other, tier, offset());
        write(object, other, 2);
        break;
      case CopyState::in_flight:
        put(object, other);
        hold_back(tier, gate);
        start(object, other, tier, offset());
        break;
    }
    EXPECT_EQ(store_->state(object, tier), state);
    return object;
  }

  void put(ObjectId object, Tier tier) { place_and_write(object, tier, offset(), 1); }

  void hold_back(Tier tier, Promise& gate) {
    if (tier == Tier::nvme) {
      io_->close_gate();
      return;
    }
    stream_into(tier).run_on_host([end = gate.completion()] { end.wait(); });
  }

  void apply(CopyEvent event, ObjectId object, Tier tier) {
    switch (event) {
      case CopyEvent::place:
        return store_->place(object, tier, offset());
      case CopyEvent::transfer_in:
        pending_ = start(object, other_of(tier), tier, offset());
        return;
      case CopyEvent::transfer_out:
        pending_ = start(object, tier, other_of(tier), offset());
        return;
      case CopyEvent::lease_read:
        return store_->acquire(object, tier, LeaseMode::read).release();
      case CopyEvent::lease_write:
        return store_->acquire(object, tier, LeaseMode::write).release();
      case CopyEvent::lease_update:
        return store_->acquire(object, tier, LeaseMode::update).release();
      case CopyEvent::drop:
        return store_->drop(object, tier);
    }
  }

  void check(CopyState state, size_t event_index, Tier tier) {
    const CopyEvent event = kEvents[event_index];
    const char expected = kExpected.at(state)[event_index];
    SCOPED_TRACE(
        fmt::format("{} copy on {}, {}", to_string(state), to_string(tier), to_string(event)));
    Promise gate;
    pending_ = Completion::done();
    const ObjectId object = make(state, tier, gate);
    if (expected == '-') {
      EXPECT_THROW(apply(event, object, tier), InternalError);
      EXPECT_EQ(store_->state(object, tier), state) << "unchanged";
    } else {
      apply(event, object, tier);
      const CopyState now = store_->state(object, tier);
      // A transfer that starts may have arrived by now.
      EXPECT_TRUE(now == state_of(expected) ||
                  (expected == 'F' && state != CopyState::in_flight && now == CopyState::valid));
    }
    gate.set_done();
    io_->open_gate();
    pending_.wait();
    remake();
    clean_up();
  }

  /// After remake() the arenas and files still have what the old store had there.
  void clean_up() {
    for (Arena* const arena : {&device_arena_, &host_arena_}) {
      if (arena->used() > Bytes(0)) {
        arena->release(offset());
      }
    }
    for (int i = 0; i < count_; ++i) {
      extents_->discard(fmt::format("o{}", i));
    }
  }

  int count_ = 0;
  Completion pending_ = Completion::done();
};

TEST_F(StateTableTest, DeviceCopies) {
  for (const CopyState state : kStates) {
    for (size_t event = 0; event < std::size(kEvents); ++event) {
      check(state, event, Tier::device);
    }
  }
}

TEST_F(StateTableTest, HostCopies) {
  for (const CopyState state : kStates) {
    for (size_t event = 0; event < std::size(kEvents); ++event) {
      check(state, event, Tier::host);
    }
  }
}

TEST_F(StateTableTest, NvmeCopies) {
  for (const CopyState state : kStates) {
    for (size_t event = 0; event < std::size(kEvents); ++event) {
      const bool needs_a_slot = state == CopyState::empty || kEvents[event] == CopyEvent::place ||
                                kEvents[event] == CopyEvent::lease_read ||
                                kEvents[event] == CopyEvent::lease_write ||
                                kEvents[event] == CopyEvent::lease_update;
      if (!needs_a_slot) {
        check(state, event, Tier::nvme);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::tiers
