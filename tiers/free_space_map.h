#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/units.h"

namespace headrace::tiers {

/// The free ranges of one file. take() is best fit (smallest gap that is large enough, lowest
/// offset among equals); give_back() joins neighbours. Not thread-safe. Misuse (a range that is
/// free already) is an InternalError.
class FreeSpaceMap {
 public:
  /// Offset of `length` (> 0) bytes that are now taken; empty if no gap is large enough.
  std::optional<int64_t> take(Bytes length);
  /// Takes exactly [offset, offset + length); false, and nothing has changed, if not all of it is
  /// free.
  bool take_at(int64_t offset, Bytes length);
  /// The free ranges, by offset: (offset, length).
  std::map<int64_t, int64_t> ranges() const { return gaps_; }
  /// Adds a range: one that was taken, or new space at the end of the file.
  void give_back(int64_t offset, Bytes length);

  /// Bytes of the gap that ends at `end`; 0 if there is none.
  Bytes gap_before(int64_t end) const;
  Bytes free_bytes() const { return free_; }

 private:
  using Gaps = std::map<int64_t, int64_t>;  // offset -> length
  void insert(int64_t offset, int64_t length);
  void erase(Gaps::iterator gap);

  Gaps gaps_;
  std::set<std::pair<int64_t, int64_t>> by_length_;  // (length, offset)
  Bytes free_;
};

}  // namespace headrace::tiers
