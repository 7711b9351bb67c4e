#pragma once

#include <optional>

#include "scheduler/trace.h"

namespace headrace::scheduler {

/// The tier in which an object owns a slot that is never given to others: its home or, for an
/// object that lives inside one trace, the lowest tier that may hold it. Empty where that is nvme:
/// such an object floats, it can always make room by moving to the store.
inline std::optional<Tier> anchor_of(const ObjectFacts& facts) {
  const Tier lowest = facts.home.value_or(facts.floor);
  return lowest == Tier::nvme ? std::nullopt : std::optional<Tier>(lowest);
}

inline bool has_home_in(const ObjectFacts& facts, Tier tier) {
  return facts.home == tier;
}

/// Bytes of an object's slot.
inline int64_t slot_bytes(const ObjectFacts& facts, Bytes alignment) {
  return align_up(facts.size, alignment).count();
}

inline bool writes(Access access) {
  return access != Access::read;
}

}  // namespace headrace::scheduler
