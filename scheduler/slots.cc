#include "scheduler/slots.h"

#include <array>
#include <limits>

#include "base/check.h"

namespace headrace::scheduler {

SlotMap::SlotMap(int64_t capacity) {
  if (capacity > 0) {
    segments_.push_back({0, capacity, kFree, 0, {}});
  }
}

std::optional<Room> SlotMap::find_room(const WindowQuery& query) const {
  double best = std::numeric_limits<double>::infinity();
  std::optional<int64_t> begin;
  // Windows end where a segment ends: every run of unpinned bytes that is long enough holds one.
  // High addresses first, because objects with a slot of their own are packed at the low end.
  for (size_t last = segments_.size(); last-- > 0 && best > 0;) {
    double keep = 0;
    double ready = 0;
    for (size_t s = last + 1; s-- > 0 && segments_[s].pins == 0;) {
      const Segment& segment = segments_[s];
      keep += segment.score.keep(query.now);
      if (segment.object != kFree || !query.free_is_ready) {
        ready = std::max(ready, segment.score.ready(query.flush_lane_free));
      }
      const double cost = keep + query.stall.stall(ready);
      if (cost >= best) {
        break;
      }
      if (segments_[last].end - segment.begin >= query.size) {
        best = cost;
        begin = segments_[last].end - query.size;
        break;
      }
    }
  }
  return begin ? room_at(*begin, query.size) : std::nullopt;
}

std::optional<Room> SlotMap::room_at(int64_t begin, int64_t size) const {
  Room room{begin, {}};
  for (size_t s = index_at(begin); s < segments_.size() && segments_[s].begin < begin + size; ++s) {
    if (segments_[s].pins > 0) {
      return std::nullopt;
    }
    if (segments_[s].object != kFree) {
      room.victims.push_back(segments_[s].object);
    }
  }
  return room;
}

double SlotMap::occupy(int64_t begin, int64_t size, int32_t object) {
  const int64_t end = begin + size;
  const size_t first = index_at(begin);
  size_t last = first;
  Segment taken{begin, end, object, 0, {}};
  while (true) {
    const Segment& segment = segments_[last];
    HR_CHECK(segment.object == kFree, "slot [{}, {}) is taken by object {}", begin, end,
             segment.object);
    taken.score.idle_from = std::max(taken.score.idle_from, segment.score.idle_from);
    if (segment.end >= end) {
      break;
    }
    ++last;
    HR_CHECK(last < segments_.size(), "slot [{}, {}) ends outside the arena", begin, end);
  }
  Segment left = segments_[first];
  Segment right = segments_[last];
  left.end = begin;
  right.begin = end;
  std::array<Segment, 3> parts;
  size_t count = 0;
  if (left.begin < left.end) {
    parts[count++] = left;
  }
  parts[count++] = taken;
  if (right.begin < right.end) {
    parts[count++] = right;
  }
  const auto where = segments_.erase(segments_.begin() + static_cast<ptrdiff_t>(first),
                                     segments_.begin() + static_cast<ptrdiff_t>(last) + 1);
  segments_.insert(where, parts.begin(), parts.begin() + static_cast<ptrdiff_t>(count));
  ++occupied_;
  return 0;
}

void SlotMap::release(int64_t begin, double ready) {
  Segment& segment = at(begin);
  segment.object = kFree;
  segment.pins = 0;
  const double idle_from = std::max(ready, segment.score.idle_from);
  segment.score = {};
  segment.score.idle_from = idle_from;
  --occupied_;
  if (segments_.size() > 3 * occupied_ + 64) {
    merge_free();
  }
}

size_t SlotMap::index_at(int64_t offset) const {
  const auto after =
      std::upper_bound(segments_.begin(), segments_.end(), offset,
                       [](int64_t value, const Segment& segment) { return value < segment.begin; });
  HR_CHECK(after != segments_.begin() && offset < std::prev(after)->end,
           "offset {} is outside the arena", offset);
  return static_cast<size_t>(after - segments_.begin()) - 1;
}

SlotMap::Segment& SlotMap::at(int64_t begin) {
  Segment& segment = segments_[index_at(begin)];
  HR_CHECK(segment.begin == begin && segment.object != kFree, "no slot begins at {}", begin);
  return segment;
}

// Neighbours are kept apart as long as possible: each has its own time from which it can be filled.
void SlotMap::merge_free() {
  std::vector<Segment> merged;
  for (const Segment& segment : segments_) {
    if (!merged.empty() && merged.back().object == kFree && segment.object == kFree) {
      merged.back().end = segment.end;
      merged.back().score.idle_from =
          std::max(merged.back().score.idle_from, segment.score.idle_from);
    } else {
      merged.push_back(segment);
    }
  }
  segments_ = std::move(merged);
}

}  // namespace headrace::scheduler
