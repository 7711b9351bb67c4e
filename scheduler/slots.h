#pragma once

#include "scheduler/arena.h"

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
  void pin(int64_t begin) override { ++at(begin).pins; }
  void unpin(int64_t begin) override { --at(begin).pins; }
  void set_score(int64_t begin, const VictimScore& score) override { at(begin).score = score; }

 private:
  static constexpr int32_t kFree = -1;
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    int32_t object = kFree;
    int32_t pins = 0;
    VictimScore score;
  };

  size_t index_at(int64_t offset) const;  ///< segment that holds the byte at `offset`
  Segment& at(int64_t begin);
  void merge_free();

  std::vector<Segment> segments_;  ///< in address order, without gaps
  size_t occupied_ = 0;
};

}  // namespace headrace::scheduler
