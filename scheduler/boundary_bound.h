#pragma once

#include <vector>

#include "scheduler/interval_relaxation.h"
#include "scheduler/value_lives.h"

namespace headrace::scheduler {

/// The two places where bytes cross: between device and host, between host and nvme.
enum class Boundary : uint8_t { link, drive };

/// Operations [begin, end) of a trace; the end of the trace counts as one more. Where a window
/// begins after the start, the best possible residency there is assumed.
struct Window {
  uint32_t begin = 0;
  uint32_t end = 0;
};

/// What has to cross one boundary during the trace upwards (to the faster side) and downwards,
/// whatever the schedule. Bytes.
struct CrossingBound {
  int64_t up = 0;    ///< fewest bytes upwards
  int64_t down = 0;  ///< fewest bytes downwards
  int64_t both = 0;  ///< fewest bytes in the sum; at least up + down
};

/// A value that stays above the boundary from one operation to the next that needs it there, or
/// comes up again.
struct Stay {
  const ValueLife* life = nullptr;
  int64_t from = 0;  ///< position; -1: from the start of the trace
  int64_t to = 0;
  StayInterval interval;  ///< the positions between them, which are not empty
};

/// Relaxation of the rules for one boundary; docs/scheduler.md, "Lower bound".
class BoundaryBound {
 public:
  BoundaryBound(const CompileInput& input, const std::vector<ValueLife>& lives, Boundary boundary);

  /// From now on, for the drive: what no operation uses on the device has only the host to stay in,
  /// and everything else may stay for nothing.
  void confine_to_host();

  CrossingBound whole_trace() const;
  /// All stretches, with the transfers that letting go costs: 1, or 2 where the value has to move
  /// down first.
  std::vector<Stay> stays() const;
  const std::vector<int64_t>& room() const { return room_; }
  /// The host's part of the room.
  std::vector<int64_t> host_room() const { return make_room(true); }
  /// Fewest bytes upwards while only these operations run.
  int64_t up_over(const Window& window) const;
  /// Whether the value has to move up (down) at least once, in any schedule of the whole trace.
  bool must_move_up(const ValueLife& life) const;
  bool must_move_down(const ValueLife& life) const;
  /// The first operation that needs the value above the boundary; null where none does.
  const Need* first_need_above(const ValueLife& life) const;

 private:
  int64_t down() const;
  Window whole_window() const {
    return {0, static_cast<uint32_t>(input_.trace->operations.size()) + 1};
  }
  bool is_above(Tier tier) const {
    return boundary_ == Boundary::drive ? tier != Tier::nvme : tier == Tier::device;
  }
  bool counts_object(ObjectId object) const {
    return confined_.empty() || confined_[index_of(object)];
  }
  bool born_above(const ValueLife& life) const;
  bool born_below(const ValueLife& life) const;
  bool has_slot_for_good(const ObjectFacts& facts) const;
  bool may_sink(const ObjectFacts& facts) const;
  std::vector<int64_t> make_room(bool only_host) const;
  std::vector<int64_t> needs_above(const ValueLife& life, const Window& window) const;
  std::vector<Stay> up_gaps(const ValueLife& life, const Window& window) const;
  bool may_avoid_moving_down(const ValueLife& life) const;
  bool may_leave(const ValueLife& life) const;
  int64_t size(const ValueLife& life) const {
    return (*input_.objects)[index_of(life.object)].size.count();
  }

  const CompileInput& input_;
  const std::vector<ValueLife>& lives_;
  Boundary boundary_;
  std::vector<bool> confined_;  ///< by object, when only some count: they do
  std::vector<int64_t> room_;   ///< by operation: bytes beside its own objects and what cannot sink
};

}  // namespace headrace::scheduler
