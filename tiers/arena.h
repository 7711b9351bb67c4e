#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "base/tier.h"
#include "base/units.h"

namespace headrace::tiers {

/// The bytes of one tier: a fixed range of memory in which a schedule places slots. It does not
/// own the memory. It refuses overlapping and outlying slots (InternalError), so a wrong schedule
/// cannot corrupt data, and keeps the high-water mark. Thread-safe.
class Arena {
 public:
  Arena(Tier tier, std::byte* memory, Bytes capacity);

  /// Takes [offset, offset + size) for `owner` (shown in messages).
  void reserve(int64_t offset, Bytes size, ObjectId owner);
  void release(int64_t offset);

  std::byte* at(int64_t offset) const { return memory_ + offset; }
  Tier tier() const { return tier_; }
  Bytes capacity() const { return capacity_; }
  Bytes used() const;
  Bytes high_water() const;

 private:
  struct Slot {
    Bytes size;
    ObjectId owner{};
  };
  Tier tier_;
  std::byte* memory_;
  Bytes capacity_;
  mutable std::mutex mutex_;
  std::map<int64_t, Slot> slots_;  // by offset
  Bytes used_;
  Bytes high_water_;
};

}  // namespace headrace::tiers
