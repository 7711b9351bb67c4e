#include "scheduler/byte_pool.h"

#include <limits>

#include "base/check.h"

namespace headrace::scheduler {

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

// For every time from which the room could be filled: what is free by then, and of the slots that
// are ready by then the cheapest.
std::optional<Room> BytePool::find_room(const WindowQuery& query) const {
  const std::vector<Candidate> slots = candidates(query);
  std::vector<double> times{0};
  for (const FreeBytes& bytes : free_) {
    times.push_back(query.free_is_ready ? 0 : bytes.ready);
  }
  for (const Candidate& slot : slots) {
    times.push_back(slot.ready);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  double best = std::numeric_limits<double>::infinity();
  std::optional<Room> room;
  for (const double time : times) {
    double cost = query.stall.stall(time);
    if (cost >= best) {
      break;  // later is not cheaper
    }
    int64_t have = 0;
    for (const FreeBytes& bytes : free_) {
      have += query.free_is_ready || bytes.ready <= time ? bytes.size : 0;
    }
    std::vector<int32_t> victims;
    for (size_t s = 0; s < slots.size() && have < query.size && cost < best; ++s) {
      if (slots[s].ready <= time) {
        have += slots[s].size;
        cost += slots[s].keep;
        victims.push_back(slots[s].object);
      }
    }
    if (have >= query.size && cost < best) {
      best = cost;
      room = Room{next_, std::move(victims)};
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
