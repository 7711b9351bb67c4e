#pragma once

#include <string>
#include <vector>

#include "scheduler/saved_trace.h"
#include "scheduler/sequence_diff.h"

namespace headrace::scheduler {

/// How two saved traces differ. Objects are told apart by their names, operations by name, lane and
/// what they use of which objects.
struct TraceDifference {
  /// Nothing differs, rounds and estimates included; only the descriptions may.
  bool is_equal = false;
  std::vector<DifferingRange> operations;  ///< of the first trace and the second
  size_t other_durations = 0;              ///< operations in both, with another estimate in each
  std::vector<std::string> only_in_first;  ///< objects
  std::vector<std::string> only_in_second;
  std::vector<std::string> changed;  ///< objects in both with another size, floor or home
};

TraceDifference compare_traces(const SavedTrace& first, const SavedTrace& second);

}  // namespace headrace::scheduler
