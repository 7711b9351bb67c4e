#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "scheduler/arena.h"

namespace headrace::scheduler {

/// The scores of the segments of an arena, number by number side by side: a search for a room looks
/// at all of them.
class SlotScores {
 public:
  VictimScore at(size_t index) const {
    return {keep_base_[index], keep_slope_[index], idle_from_[index], flush_seconds_[index]};
  }
  void set(size_t index, const VictimScore& score);
  /// A barred segment is part of no room.
  void bar(size_t index, bool barred);
  /// Puts `scores`, of segments that are not barred, in the place of `count` segments.
  void replace(size_t first, size_t count, std::span<const VictimScore> scores);

  /// What a room in each of the segments [begin, begin + costs.size()) alone would cost, if it were
  /// large enough; infinite where it is barred. Returns the least of them.
  double price(const WindowQuery& query, size_t begin, std::span<double> costs) const;

 private:
  std::vector<double> keep_base_;
  std::vector<double> keep_slope_;
  std::vector<double> idle_from_;
  std::vector<double> flush_seconds_;
  std::vector<double> bar_;  ///< 0 or infinite
};

/// Replaces `count` elements by others, moving as few of the rest as possible.
template <class T>
void replace_elements(std::vector<T>& all, size_t first, size_t count, std::span<const T> others) {
  const auto begin = all.begin() + static_cast<ptrdiff_t>(first);
  const size_t common = std::min(count, others.size());
  const auto behind = std::copy_n(others.begin(), common, begin);
  if (common < count) {
    all.erase(behind, begin + static_cast<ptrdiff_t>(count));
  } else {
    all.insert(behind, others.begin() + static_cast<ptrdiff_t>(common), others.end());
  }
}

}  // namespace headrace::scheduler
