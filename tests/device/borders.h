#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <vector>

namespace headrace::device::testing {

/// device::Visibility of sequences that documents of these lengths share. A position sees `window`
/// positions of its document, itself among them, or all.
struct Borders {
  static constexpr int32_t kAll = INT32_MAX / 2;

  Borders() = default;
  explicit Borders(const std::vector<int32_t>& lengths, int32_t window = kAll) {
    add_sequence(lengths, window);
  }

  void add_sequence(const std::vector<int32_t>& lengths, int32_t window) {
    int32_t begin = 0;
    for (const int32_t length : lengths) {
      for (int32_t i = begin; i < begin + length; ++i) {
        begins.push_back(std::max(begin, i - window + 1));
        ends.push_back(std::min(begin + length, i + window));
      }
      begin += length;
    }
  }

  std::vector<int32_t> begins;
  std::vector<int32_t> ends;
};

}  // namespace headrace::device::testing
