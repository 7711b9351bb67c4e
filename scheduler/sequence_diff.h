#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::scheduler {

/// A stretch in which two sequences differ; before and after it they are equal. One of the two
/// ranges may be empty.
struct DifferingRange {
  size_t first_begin = 0;
  size_t first_end = 0;
  size_t second_begin = 0;
  size_t second_end = 0;

  bool operator==(const DifferingRange&) const = default;
};

/// Where the sequences differ, in order; what is left out is a longest common subsequence (Myers).
/// Takes time and memory of the square of the elements that are in one only; where these are more
/// than `most_edits`, everything between the common beginning and the common end is one range.
std::vector<DifferingRange> differing_ranges(const std::vector<uint32_t>& first,
                                             const std::vector<uint32_t>& second,
                                             size_t most_edits = 2000);

}  // namespace headrace::scheduler
