#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// An operation that reads or updates a value, and where.
struct Need {
  uint32_t position = 0;  ///< of the operation in the trace
  Tier tier = Tier::device;
};

/// One value of an object: from the operation that makes it (or the start of the trace) to the
/// operation that replaces it.
struct ValueLife {
  ObjectId object{};
  int64_t born = -1;                  ///< position of its maker; -1: it is there from the start
  std::array<bool, kTierCount> in{};  ///< by tier: where it is when it is born
  std::vector<Need> needs;            ///< ascending
  bool goes_home = false;             ///< the home has to get it before the trace ends
};

/// All values of a trace, grouped by object, in order of birth. Facts of the trace and of the
/// initial residency alone: they hold for every schedule.
std::vector<ValueLife> value_lives(const CompileInput& input);

}  // namespace headrace::scheduler
