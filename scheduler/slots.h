#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace headrace::scheduler {

/// What it costs to take the slot of a copy away, in seconds; made by a VictimModel.
struct VictimScore {
  /// Expected cost of bringing the copy back: keep_base + keep_slope * now, never below 0.
  double keep_base = 0;
  double keep_slope = 0;
  double idle_from = 0;      ///< when its last reader or writer has ended
  double flush_seconds = 0;  ///< time to move the only copy of a value away first

  double keep(double now) const { return std::max(0.0, keep_base + keep_slope * now); }
  double ready(double flush_lane_free) const {
    return flush_seconds > 0 ? std::max(idle_from, flush_lane_free) + flush_seconds : idle_from;
  }
};

/// Delay of the waiting operation when its transfer can start at `ready` only, beyond the delay it
/// has in any case: the lane is free from `lane_free`, the transfer takes `transfer_seconds`, and
/// the operation could start at `deadline`.
struct StallModel {
  double lane_free = 0;
  double transfer_seconds = 0;
  double deadline = 0;
  double lateness = 0;  ///< price of a second of `ready`: who starts early does not delay others

  double stall(double ready) const {
    return lateness * ready + std::max(0.0, std::max(lane_free, ready) + transfer_seconds -
                                                std::max(deadline, lane_free + transfer_seconds));
  }
};

struct WindowQuery {
  int64_t size = 0;
  double now = 0;              ///< position in the trace, the argument of VictimScore::keep
  double flush_lane_free = 0;  ///< when the lane that moves victims away is free
  StallModel stall;
  bool free_is_ready = false;  ///< the times of free segments do not count
};

/// Address map of one simulated arena: a sequence of segments, each free or the slot of an object.
/// Pinned segments are never part of a window. Offsets and sizes are bytes.
class SlotMap {
 public:
  static constexpr int32_t kFree = -1;

  explicit SlotMap(int64_t capacity);

  /// Begin of the cheapest window of `query.size` bytes without pinned segments: least stall plus
  /// the sum of the victims' keep costs. Empty when pinned segments leave no such window.
  std::optional<int64_t> find_window(const WindowQuery& query) const;
  /// Objects whose slots overlap [begin, end).
  std::vector<int32_t> objects_in(int64_t begin, int64_t end) const;

  /// Takes [begin, begin + size), all free, for an object.
  void occupy(int64_t begin, int64_t size, int32_t object);
  /// Gives the slot at `begin` back; its bytes can be filled from time `ready` on.
  void release(int64_t begin, double ready);
  void pin(int64_t begin) { ++at(begin).pins; }
  void unpin(int64_t begin) { --at(begin).pins; }
  void set_score(int64_t begin, const VictimScore& score) { at(begin).score = score; }

 private:
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
