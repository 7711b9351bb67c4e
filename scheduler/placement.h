#pragma once

#include <algorithm>
#include <optional>
#include <vector>

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

/// Whether a current copy in the tier is newer than what lies at home, or is the only one.
inline bool is_dirty(const ObjectFacts& facts, Tier tier, bool home_is_current) {
  return !facts.home || (facts.home != tier && !home_is_current);
}

/// A copy and when it was last used: a rank.
struct UsedCopy {
  int64_t last_use = 0;
  Residency copy;
};

/// The copies, least recently used first; of those of one rank in the order given.
inline std::vector<Residency> by_last_use(std::vector<UsedCopy> copies) {
  std::stable_sort(copies.begin(), copies.end(),
                   [](const UsedCopy& a, const UsedCopy& b) { return a.last_use < b.last_use; });
  std::vector<Residency> sorted;
  sorted.reserve(copies.size());
  for (const UsedCopy& used : copies) {
    sorted.push_back(used.copy);
  }
  return sorted;
}

}  // namespace headrace::scheduler
