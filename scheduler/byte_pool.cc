#include "scheduler/byte_pool.h"

#include <limits>

#include "base/check.h"

namespace headrace::scheduler {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

BytePool::BytePool(int64_t capacity) : next_(capacity) {
  if (capacity > 0) {
    free_.push_back({0, capacity});
  }
}

BytePool::Slot& BytePool::at(int64_t begin) {
  const auto slot =
      std::lower_bound(slots_.begin(), slots_.end(), begin,
                       [](const Slot& candidate, int64_t b) { return candidate.begin < b; });
  HR_CHECK(slot != slots_.end() && slot->begin == begin, "no slot is called {}", begin);
  return *slot;
}

/// The cheapest to bring back first, by bytes.
std::vector<BytePool::Candidate> BytePool::candidates(const WindowQuery& query) const {
  std::vector<Candidate> found;
  found.reserve(slots_.size());
  for (const Slot& slot : slots_) {
    if (slot.pins == 0) {
      found.push_back({slot.object, slot.size, slot.score.keep(query.now),
                       slot.score.ready(query.flush_lane_free)});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.keep * static_cast<double>(b.size) < b.keep * static_cast<double>(a.size);
  });
  return found;
}

/// When slots are ready, ascending, and how many of their bytes are ready by then.
std::vector<BytePool::FreeBytes> BytePool::ready_bytes(const std::vector<Candidate>& slots) {
  std::vector<FreeBytes> ready;
  ready.reserve(slots.size());
  for (const Candidate& slot : slots) {
    ready.push_back({slot.ready, slot.size});
  }
  std::sort(ready.begin(), ready.end(),
            [](const FreeBytes& a, const FreeBytes& b) { return a.ready < b.ready; });
  return ready;
}

// For every time from which the room could be filled: what is free by then, and of the slots that
// are ready by then the cheapest.
std::optional<Room> BytePool::find_room(const WindowQuery& query) const {
  const std::vector<Candidate> slots = candidates(query);
  const std::vector<FreeBytes> ready = ready_bytes(slots);
  const auto time_of = [](const std::vector<FreeBytes>& bytes, size_t index) {
    return index < bytes.size() ? bytes[index].ready : kNever;
  };
  double best = kNever;
  double best_time = 0;
  int64_t best_free = 0;
  size_t next_free = 0;
  size_t next_ready = 0;
  int64_t free = 0;
  int64_t evictable = 0;
  for (double time = 0; time < kNever;
       time = std::min(time_of(free_, next_free), time_of(ready, next_ready))) {
    for (; next_free < free_.size() && (query.free_is_ready || free_[next_free].ready <= time);
         ++next_free) {
      free += free_[next_free].size;
    }
    for (; next_ready < ready.size() && ready[next_ready].ready <= time; ++next_ready) {
      evictable += ready[next_ready].size;
    }
    double cost = query.stall.stall(time);
    if (cost >= best) {
      break;  // later is not cheaper
    }
    if (free + evictable >= query.size) {
      int64_t have = free;
      for (size_t s = 0; have < query.size && cost < best; ++s) {
        if (slots[s].ready <= time) {
          have += slots[s].size;
          cost += slots[s].keep;
        }
      }
      if (cost < best) {
        best = cost;
        best_time = time;
        best_free = free;
      }
    }
  }
  if (best == kNever) {
    return std::nullopt;
  }
  Room room{next_, {}};
  for (size_t s = 0; best_free < query.size; ++s) {
    if (slots[s].ready <= best_time) {
      best_free += slots[s].size;
      room.victims.push_back(slots[s].object);
    }
  }
  return room;
}

std::optional<Room> BytePool::room_at(int64_t /*begin*/, int64_t size) const {
  WindowQuery query;
  query.size = size;
  return find_room(query);
}

double BytePool::occupy(int64_t begin, int64_t size, int32_t object) {
  double ready = 0;
  size_t used = 0;
  for (int64_t missing = size; missing > 0;) {
    HR_CHECK(used < free_.size(), "{} of {} bytes are not free", missing, size);
    FreeBytes& bytes = free_[used];
    const int64_t part = std::min(missing, bytes.size);
    ready = bytes.ready;
    bytes.size -= part;
    missing -= part;
    used += bytes.size == 0 ? 1 : 0;
  }
  free_.erase(free_.begin(), free_.begin() + static_cast<ptrdiff_t>(used));
  const auto after = std::upper_bound(slots_.begin(), slots_.end(), begin,
                                      [](int64_t b, const Slot& slot) { return b < slot.begin; });
  slots_.insert(after, Slot{begin, size, object, 0, {}});
  next_ = std::max(next_, begin + size);
  return ready;
}

void BytePool::release(int64_t begin, double ready) {
  Slot& slot = at(begin);
  const auto later =
      std::upper_bound(free_.begin(), free_.end(), ready,
                       [](double time, const FreeBytes& bytes) { return time < bytes.ready; });
  free_.insert(later, FreeBytes{ready, slot.size});
  slots_.erase(slots_.begin() + (&slot - slots_.data()));
}

}  // namespace headrace::scheduler
