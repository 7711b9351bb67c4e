#pragma once

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "device/kernel_checks.h"

namespace headrace::device::cpu {

inline void check_ids(const int32_t* ids, int64_t tokens, TableRange range, int64_t rows) {
  check_table_range(range, rows);
  for (int64_t t = 0; t < tokens; ++t) {
    HR_CHECK(ids[t] >= 0 && ids[t] < range.vocabulary,
             "embedding: token {} has id {}, vocabulary {}", t, ids[t], range.vocabulary);
  }
}

/// The positions of every id of a range in a batch of tokens, in order of position: a counting
/// sort. Ids count from the first of the range; others are left out.
class TokensById {
 public:
  TokensById(const int32_t* ids, int64_t tokens, int64_t first, int64_t count)
      : starts_(static_cast<size_t>(count) + 1), positions_(static_cast<size_t>(tokens)) {
    HR_CHECK(tokens <= std::numeric_limits<int32_t>::max(), "embedding: {} tokens", tokens);
    const auto is_in_range = [&](int64_t t) { return ids[t] >= first && ids[t] < first + count; };
    for (int64_t t = 0; t < tokens; ++t) {
      if (is_in_range(t)) {
        ++starts_[static_cast<size_t>(ids[t] - first) + 1];
      }
    }
    std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
    std::vector<int32_t> next(starts_.begin(), starts_.end() - 1);
    for (int64_t t = 0; t < tokens; ++t) {
      if (is_in_range(t)) {
        const auto slot = static_cast<size_t>(next[static_cast<size_t>(ids[t] - first)]++);
        positions_[slot] = static_cast<int32_t>(t);
      }
    }
  }

  /// First position of `id`; those of an id end where the next one's begin. id <= count.
  const int32_t* begin_of(int64_t id) const {
    return positions_.data() + starts_[static_cast<size_t>(id)];
  }

 private:
  std::vector<int32_t> starts_;
  std::vector<int32_t> positions_;
};

}  // namespace headrace::device::cpu
