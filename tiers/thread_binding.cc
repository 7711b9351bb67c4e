#include "tiers/thread_binding.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "tiers/hwloc_topology.h"

namespace headrace::tiers {

namespace {

std::vector<hwloc_obj_t> nodes_of(hwloc_topology_t topology, std::optional<int> wanted) {
  std::vector<hwloc_obj_t> nodes;
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    if (!wanted || static_cast<int>(node->os_index) == *wanted) {
      nodes.push_back(node);
    }
  }
  if (wanted && nodes.empty()) {
    throw InputError(
        fmt::format("headrace.numa_node: {} is not a node that this process may use", *wanted));
  }
  return nodes;
}

}  // namespace

void bind_parallel_threads(std::optional<int> numa_node) {
  const HwlocTopology topology = load_hwloc_topology();
  const std::vector<hwloc_obj_t> nodes = nodes_of(topology.get(), numa_node);
  if (!numa_node && nodes.size() < 2) {
    return;
  }
  const auto threads = static_cast<size_t>(parallel_threads());
  std::atomic<int> refusal{0};
  on_every_parallel_thread([&](size_t thread) {
    hwloc_const_cpuset_t cpus = nodes[thread * nodes.size() / threads]->cpuset;
    if (hwloc_set_cpubind(topology.get(), cpus, HWLOC_CPUBIND_THREAD) != 0) {
      refusal = errno;
    }
  });
  if (refusal != 0) {
    log_message_once(LogLevel::warning, "thread binding",
                     fmt::format("optimizer threads are not bound to their NUMA nodes ({}): their "
                                 "memory may be remote, which is slower",
                                 errno_text(refusal)));
  }
}

}  // namespace headrace::tiers
