#pragma once

#include <optional>

namespace headrace::tiers {

/// Binds the OpenMP threads of the calling thread, itself included, to the CPUs of `numa_node`, so
/// that they work next to an arena bound there. Without a node they are spread over all nodes, as
/// such an arena's pages are; a machine with one node needs nothing then. InputError for a node
/// that does not exist; a refusal of the system is logged once and costs only speed.
void bind_parallel_threads(std::optional<int> numa_node);

}  // namespace headrace::tiers
