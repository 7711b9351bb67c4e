#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// When each object is needed next, seen from a cursor that moves through the trace. The trace is
/// expected to repeat: after the last use of a persistent object comes its first use, one round
/// later. Positions are operation indices; those of the next round are counted on, in
/// [operations, 2 * operations).
class NextUse {
 public:
  static constexpr uint32_t kNever = UINT32_MAX;

  explicit NextUse(const CompileInput& input);

  /// The object's use by the current operation is over.
  void advance(ObjectId object) { ++cursor_[index_of(object)]; }

  /// Next position at which a copy in `tier` saves a transfer; kNever when it will be stale or
  /// dead before.
  uint32_t next_in(ObjectId object, Tier tier) const {
    const size_t at = slot(object);
    return tier == Tier::device ? next_on_device_[at] : next_on_host_[at];
  }
  /// Uses of the object that are over.
  uint32_t uses_over(ObjectId object) const { return cursor_[index_of(object)]; }
  /// The value held now is read later in this trace, or has to be at home when the trace ends.
  /// Where other operations may come, every value that was not discarded is needed.
  bool value_is_needed(ObjectId object) const;
  /// An operation of this trace still changes the object.
  bool will_be_written(ObjectId object) const {
    return cursor_[index_of(object)] < writes_end_[index_of(object)];
  }
  /// The value that the object has after the trace goes home: it has one and is not discarded.
  bool outlives_trace(ObjectId object) const {
    if (foresight_ == Foresight::expected_part) {
      return false;
    }
    const uint32_t end = first_[index_of(object) + 1];
    return persistent_[index_of(object)] != 0 &&
           (end == first_[index_of(object)] || !visits_[end - 1].discard_after);
  }
  /// No operation of this trace uses the object any more.
  bool is_over(ObjectId object) const {
    return first_[index_of(object)] + cursor_[index_of(object)] == first_[index_of(object) + 1];
  }

 private:
  struct Visit {
    uint32_t operation = 0;
    Tier tier = Tier::device;
    Access access = Access::read;
    bool discard_after = false;
  };

  /// Index in the next_ tables, which hold one more entry per object than visits_: its end.
  size_t slot(ObjectId object) const {
    const uint32_t i = index_of(object);
    return first_[i] + cursor_[i] + i;
  }
  void link(uint32_t object, bool persistent, uint32_t operations);

  Foresight foresight_ = Foresight::whole_step;
  std::vector<uint8_t> has_value_;    ///< at the begin; where other operations may come
  std::vector<Visit> visits_;         ///< grouped by object, in trace order
  std::vector<uint32_t> first_;       ///< by object: its first visit
  std::vector<uint32_t> cursor_;      ///< by object: visits that are over
  std::vector<uint32_t> writes_end_;  ///< by object: one past its last writing visit
  std::vector<uint8_t> persistent_;
  std::vector<uint32_t> next_on_device_;
  std::vector<uint32_t> next_on_host_;
};

}  // namespace headrace::scheduler
