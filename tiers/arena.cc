#include "tiers/arena.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace headrace::tiers {

Arena::Arena(Tier tier, std::byte* memory, Bytes capacity)
    : tier_(tier), memory_(memory), capacity_(capacity) {
  HR_CHECK(capacity >= Bytes(0), "{} arena of {} bytes", to_string(tier), capacity);
}

void Arena::reserve(int64_t offset, Bytes size, ObjectId owner) {
  const std::lock_guard lock(mutex_);
  HR_CHECK(offset >= 0 && size > Bytes(0) && size <= capacity_ &&
               offset <= capacity_.count() - size.count(),
           "slot [{}, +{}) of object {} lies outside the {} arena of {} bytes", offset, size,
           index_of(owner), to_string(tier_), capacity_);
  const int64_t end = offset + size.count();
  const auto after = slots_.lower_bound(offset);
  HR_CHECK(after == slots_.end() || after->first >= end,
           "slot [{}, +{}) of object {} overlaps [{}, +{}) of object {} in the {} arena", offset,
           size, index_of(owner), after->first, after->second.size, index_of(after->second.owner),
           to_string(tier_));
  if (after != slots_.begin()) {
    const auto& [begin, slot] = *std::prev(after);
    HR_CHECK(begin + slot.size.count() <= offset,
             "slot [{}, +{}) of object {} overlaps [{}, +{}) of object {} in the {} arena", offset,
             size, index_of(owner), begin, slot.size, index_of(slot.owner), to_string(tier_));
  }
  slots_.emplace_hint(after, offset, Slot{size, owner});
  used_ += size;
  high_water_ = std::max(high_water_, used_);
}

void Arena::release(int64_t offset) {
  const std::lock_guard lock(mutex_);
  const auto slot = slots_.find(offset);
  HR_CHECK(slot != slots_.end(), "release of offset {} in the {} arena, where no slot begins",
           offset, to_string(tier_));
  used_ -= slot->second.size;
  slots_.erase(slot);
}

Bytes Arena::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

Bytes Arena::high_water() const {
  const std::lock_guard lock(mutex_);
  return high_water_;
}

}  // namespace headrace::tiers
