#pragma once

#include "scheduler/arena.h"
#include "scheduler/slot_scores.h"

namespace headrace::scheduler {

/// Address map of one simulated arena: a sequence of segments, each free or the slot of an object.
/// Rooms are contiguous; pinned segments are never part of one.
class SlotMap final : public Arena {
 public:
  explicit SlotMap(int64_t capacity);

  std::optional<Room> find_room(const WindowQuery& query) const override;
  std::optional<Room> room_at(int64_t begin, int64_t size) const override;
  /// [begin, begin + size) must be free. Returns 0: dependencies follow from the addresses.
  double occupy(int64_t begin, int64_t size, int32_t object) override;
  void release(int64_t begin, double ready) override;
  void pin(int64_t begin) override { change_pins(begin, 1); }
  void unpin(int64_t begin) override { change_pins(begin, -1); }
  void set_score(int64_t begin, const VictimScore& score) override {
    scores_.set(index_of(begin), score);
  }

 private:
  static constexpr int32_t kFree = -1;
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    int32_t object = kFree;
    int32_t pins = 0;
  };

  /// Cost of the room that ends where segment `last` does; infinite where it costs no less than
  /// `limit` or is none.
  double cost_of_room(const WindowQuery& query, size_t last, double limit) const;
  void change_pins(int64_t begin, int32_t change);
  size_t index_at(int64_t offset) const;  ///< segment that holds the byte at `offset`
  size_t index_of(int64_t begin) const;   ///< of the slot that begins there
  void merge_free();

  std::vector<Segment> segments_;  ///< in address order, without gaps
  SlotScores scores_;
  size_t occupied_ = 0;
};

}  // namespace headrace::scheduler
