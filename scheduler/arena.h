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
  bool free_is_ready = false;  ///< the times of free bytes do not count
};

/// A slot that could be taken, and the objects whose slots have to be given back before.
struct Room {
  int64_t begin = 0;
  std::vector<int32_t> victims;
};

/// The slots of one simulated tier. A slot is known by its first byte. Sizes and offsets are bytes.
class Arena {
 public:
  virtual ~Arena() = default;

  /// The cheapest room of `query.size` bytes: least stall plus the sum of the victims' keep costs.
  /// Empty when pinned slots leave none.
  virtual std::optional<Room> find_room(const WindowQuery& query) const = 0;
  /// Room at a given place; empty when pinned slots are in the way.
  virtual std::optional<Room> room_at(int64_t begin, int64_t size) const = 0;
  /// Takes a room without victims for an object. Returns from when its bytes can be filled, as far
  /// as the dependencies of the actions do not say that.
  virtual double occupy(int64_t begin, int64_t size, int32_t object) = 0;
  /// Gives the slot at `begin` back; its bytes can be filled from time `ready` on.
  virtual void release(int64_t begin, double ready) = 0;
  virtual void pin(int64_t begin) = 0;
  virtual void unpin(int64_t begin) = 0;
  virtual void set_score(int64_t begin, const VictimScore& score) = 0;
};

}  // namespace headrace::scheduler
