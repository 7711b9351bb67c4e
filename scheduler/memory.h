#pragma once

#include <array>
#include <memory>
#include <vector>

#include "scheduler/arena.h"
#include "scheduler/footprint.h"
#include "scheduler/next_use.h"
#include "scheduler/plan_builder.h"
#include "scheduler/slot_plan.h"
#include "scheduler/victim_model.h"

namespace headrace::scheduler {

/// How a walk sees the arenas.
struct ArenaModel {
  bool has_addresses = true;         ///< false: BytePool, the schedule can only be planned with
  const SlotPlan* places = nullptr;  ///< where slots are taken before all other places
};

/// The simulated tiers during compile(): which copies exist and where, and the moves that make
/// room and bring values. Every change of state appends the action that causes it to the plan.
///
/// Making room on the device may need one host slot; making room in the host never needs another
/// slot. With nothing pinned in the host, room for one object in transit can therefore always be
/// made, and with it any window of the device that is not pinned.
class Memory {
 public:
  Memory(const CompileInput& input, const Footprint& footprint, const VictimModel& model,
         NextUse& next_use, PlanBuilder& plan, const ArenaModel& arenas);

  /// The following calls are on behalf of this operation of the trace.
  void begin_operation(uint32_t position);

  bool has_slot(ObjectId object, Tier tier) const { return copy(object, tier).slot >= 0; }
  bool is_valid(ObjectId object, Tier tier) const { return copy(object, tier).valid; }
  int64_t size(ObjectId object) const { return sizes_[index_of(object)]; }
  void pin(ObjectId object, Tier tier);
  void unpin(ObjectId object, Tier tier);

  /// Takes the best room for the object, evicting what lies there; false when pinned slots leave no
  /// room of that size.
  bool try_allocate(ObjectId object, Tier tier);
  void allocate_at(ObjectId object, Tier tier, int64_t offset);
  /// Gives back a slot that has not been filled.
  void cancel_allocation(ObjectId object, Tier tier);
  /// Ends the copy in a tier, moving the value down or home first if it is the only one.
  void evict(ObjectId object, Tier tier);
  /// Makes the copy in a tier, which has a slot, hold the current value.
  void bring(ObjectId object, Tier tier);
  /// Brings the current value to a tier ahead of its use, if a slot is there that displaces none of
  /// `live` (sorted). For the device, nothing in the host may be pinned.
  void prefetch(ObjectId object, Tier tier, const std::vector<ObjectId>& live);
  /// Ends the copies above the home, as far as they are not the only ones.
  void release(ObjectId object);
  /// Prepares a slot for a value that the operation writes.
  void prepare_write(ObjectId object, Tier tier);
  /// Takes and gives back the anchored slot of an object that lives inside the trace.
  void take_anchor(ObjectId object);
  void give_anchor(ObjectId object);

  /// Forgets the copies in all tiers but one, of which the current operation makes a new value.
  void drop_others(ObjectId object, Tier kept);
  /// The operation has used the object: the cursor of the next use moves on, dead values go.
  void after_use(const Use& use);
  /// Brings the values that must be at home there; nothing is pinned any more.
  void finish();
  /// Arena copies, least recently used first.
  std::vector<Residency> residents() const;

 private:
  struct Copy {
    int64_t slot = -1;  ///< bytes in the arena; not used on nvme
    bool valid = false;
    int64_t last_use = 0;
    double ready = 0;  ///< from when the slot can be filled, beside what dependencies say
  };

  Copy& copy(ObjectId object, Tier tier) {
    return copies_[index_of(object)][static_cast<size_t>(tier)];
  }
  const Copy& copy(ObjectId object, Tier tier) const {
    return copies_[index_of(object)][static_cast<size_t>(tier)];
  }
  const ObjectFacts& facts(ObjectId object) const { return (*input_.objects)[index_of(object)]; }
  const Arena& slots(Tier tier) const { return *slots_[static_cast<size_t>(tier)]; }
  Arena& slots(Tier tier) { return *slots_[static_cast<size_t>(tier)]; }

  void load_initial();
  /// Order of use, from 1: everything that was resident at first comes before the first operation.
  int64_t now() const { return 1 + static_cast<int64_t>(input_.initial.size()) + position_; }
  bool is_only_copy(ObjectId object, Tier tier) const;
  void transfer(ObjectId object, Tier from, Tier to);
  void move_away(ObjectId object, Tier tier);
  void drop(ObjectId object, Tier tier);
  void return_home(ObjectId object);
  void force_home(ObjectId object);
  std::optional<Room> planned_room(ObjectId object, Tier tier) const;
  std::optional<Room> find_room(ObjectId object, Tier tier) const;
  void take_room(ObjectId object, Tier tier, const Room& room);
  double seconds(ObjectId object, Tier from, Tier to) const;
  StallModel arrival(ObjectId object, Tier tier) const;
  CopyFacts describe(ObjectId object, Tier tier) const;
  void rescore(ObjectId object);

  const CompileInput& input_;
  const Footprint& footprint_;
  const VictimModel& model_;
  NextUse& next_use_;
  PlanBuilder& plan_;
  std::array<std::unique_ptr<Arena>, 2> slots_;
  const SlotPlan* places_;
  std::vector<int64_t> sizes_;
  std::vector<std::array<Copy, kTierCount>> copies_;
  uint32_t position_ = 0;
  double deadline_ = 0;  ///< when the current operation could start, as far as known
};

}  // namespace headrace::scheduler
