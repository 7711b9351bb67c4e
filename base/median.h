#pragma once

#include <algorithm>
#include <vector>

namespace headrace {

/// The middle value, or the mean of the two in the middle; 0 where there is none.
inline double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace headrace
