#pragma once

#include <hwloc.h>

#include <memory>

namespace headrace::tiers {

struct HwlocDestroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, HwlocDestroy>;

/// The cores, CPUs and memory nodes that this process may use; nothing else is discovered.
HwlocTopology load_hwloc_topology();

}  // namespace headrace::tiers
