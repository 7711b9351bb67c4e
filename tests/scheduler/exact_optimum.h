#pragma once

#include <array>
#include <optional>

#include "support.h"

namespace headrace::scheduler::test {

/// Price of a byte on each way: nvme read, nvme write, host to device, device to host.
using ByteCosts = std::array<int64_t, 4>;

/// Least cost of any plan that runs a small case `rounds` times in a row, by exhaustive search
/// (shortest path over all residencies between all operations) in the model in which compile()
/// works: whole objects, one way between adjacent tiers, anchored slots. Slots have sizes but no
/// addresses, so the optimum is at most that of real arenas. Empty when more than `most_states`
/// residencies have to be looked at.
std::optional<int64_t> exact_optimum(const Case& test_case, const ByteCosts& costs, int rounds,
                                     size_t most_states);

}  // namespace headrace::scheduler::test
