#include "scheduler/slots.h"

#include <array>
#include <limits>
#include <span>

#include "base/check.h"

namespace headrace::scheduler {

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

}  // namespace

SlotMap::SlotMap(int64_t capacity) {
  if (capacity > 0) {
    segments_.push_back({0, capacity, kFree, 0});
    scores_.replace(0, 0, std::array<VictimScore, 1>());
  }
}

std::optional<Room> SlotMap::find_room(const WindowQuery& query) const {
  constexpr size_t kAtOnce = 64;
  std::array<double, kAtOnce> alone;
  double best = kNone;
  std::optional<int64_t> begin;
  // Windows end where a segment ends: every run of unpinned bytes that is long enough holds one.
  // High addresses first, because objects with a slot of their own are packed at the low end.
  for (size_t end = segments_.size(); end > 0 && best > 0;) {
    const size_t first = end - std::min(end, kAtOnce);
    const double least = scores_.price(query, first, std::span(alone).first(end - first));
    // A window costs no less than one of its segments, but for free ones whose time does not count.
    const auto loses = [&](double cost) { return cost >= best && !query.free_is_ready; };
    for (size_t last = end; last-- > first && best > 0 && !loses(least);) {
      if (loses(alone[last - first])) {
        continue;
      }
      const double cost = cost_of_room(query, last, best);
      if (cost < best) {
        best = cost;
        begin = segments_[last].end - query.size;
      }
    }
    end = first;
  }
  return begin ? room_at(*begin, query.size) : std::nullopt;
}

double SlotMap::cost_of_room(const WindowQuery& query, size_t last, double limit) const {
  double keep = 0;
  double ready = 0;
  for (size_t s = last + 1; s-- > 0 && segments_[s].pins == 0;) {
    const Segment& segment = segments_[s];
    const VictimScore score = scores_.at(s);
    keep += score.keep(query.now);
    if (segment.object != kFree || !query.free_is_ready) {
      ready = std::max(ready, score.ready(query.flush_lane_free));
    }
    const double cost = keep + query.stall.stall(ready);
    if (cost >= limit) {
      break;
    }
    if (segments_[last].end - segment.begin >= query.size) {
      return cost;
    }
  }
  return kNone;
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
  VictimScore score;
  while (true) {
    const Segment& segment = segments_[last];
    HR_CHECK(segment.object == kFree, "slot [{}, {}) is taken by object {}", begin, end,
             segment.object);
    score.idle_from = std::max(score.idle_from, scores_.at(last).idle_from);
    if (segment.end >= end) {
      break;
    }
    ++last;
    HR_CHECK(last < segments_.size(), "slot [{}, {}) ends outside the arena", begin, end);
  }
  std::array<Segment, 3> parts;
  std::array<VictimScore, 3> scores;
  size_t count = 0;
  const auto add = [&](const Segment& part, const VictimScore& its_score) {
    if (part.begin < part.end) {
      parts[count] = part;
      scores[count++] = its_score;
    }
  };
  add({segments_[first].begin, begin, kFree, 0}, scores_.at(first));
  add({begin, end, object, 0}, score);
  add({end, segments_[last].end, kFree, 0}, scores_.at(last));
  replace_elements(segments_, first, last - first + 1,
                   std::span<const Segment>(parts).first(count));
  scores_.replace(first, last - first + 1, std::span(scores).first(count));
  ++occupied_;
  return 0;
}

void SlotMap::release(int64_t begin, double ready) {
  const size_t index = index_of(begin);
  segments_[index].object = kFree;
  segments_[index].pins = 0;
  scores_.bar(index, false);
  VictimScore score;
  score.idle_from = std::max(ready, scores_.at(index).idle_from);
  scores_.set(index, score);
  --occupied_;
  if (segments_.size() > 3 * occupied_ + 64) {
    merge_free();
  }
}

void SlotMap::change_pins(int64_t begin, int32_t change) {
  const size_t index = index_of(begin);
  segments_[index].pins += change;
  scores_.bar(index, segments_[index].pins > 0);
}

size_t SlotMap::index_at(int64_t offset) const {
  const auto after =
      std::upper_bound(segments_.begin(), segments_.end(), offset,
                       [](int64_t value, const Segment& segment) { return value < segment.begin; });
  HR_CHECK(after != segments_.begin() && offset < std::prev(after)->end,
           "offset {} is outside the arena", offset);
  return static_cast<size_t>(after - segments_.begin()) - 1;
}

size_t SlotMap::index_of(int64_t begin) const {
  const size_t index = index_at(begin);
  HR_CHECK(segments_[index].begin == begin && segments_[index].object != kFree,
           "no slot begins at {}", begin);
  return index;
}

// Neighbours are kept apart as long as possible: each has its own time from which it can be filled.
void SlotMap::merge_free() {
  size_t kept = 0;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const Segment segment = segments_[s];
    VictimScore score = scores_.at(s);
    if (kept > 0 && segments_[kept - 1].object == kFree && segment.object == kFree) {
      segments_[kept - 1].end = segment.end;
      score.idle_from = std::max(score.idle_from, scores_.at(kept - 1).idle_from);
      scores_.set(kept - 1, score);
    } else {
      segments_[kept] = segment;
      scores_.bar(kept, segment.pins > 0);
      scores_.set(kept++, score);
    }
  }
  const size_t merged = segments_.size() - kept;
  segments_.resize(kept);
  scores_.replace(kept, merged, {});
}

}  // namespace headrace::scheduler
