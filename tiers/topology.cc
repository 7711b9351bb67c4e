#include "tiers/topology.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/system_file.h"
#include "tiers/cgroup.h"
#include "tiers/hwloc_topology.h"

namespace headrace::tiers {

HwlocTopology load_hwloc_topology() {
  hwloc_topology_t made = nullptr;
  HR_CHECK(hwloc_topology_init(&made) == 0, "hwloc cannot be initialized");
  HwlocTopology topology(made);
  hwloc_topology_set_all_types_filter(made, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(made, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_flags(
      made, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  HR_CHECK(hwloc_topology_load(made) == 0, "hwloc cannot read the machine's topology");
  return topology;
}

Topology detect_topology() {
  const HwlocTopology hwloc = load_hwloc_topology();
  const auto cores_in = [&](hwloc_const_cpuset_t cpus) {
    return hwloc_get_nbobjs_inside_cpuset_by_type(hwloc.get(), cpus, HWLOC_OBJ_CORE);
  };
  Topology topology;
  topology.cores = hwloc_get_nbobjs_by_type(hwloc.get(), HWLOC_OBJ_CORE);
  topology.hardware_threads = hwloc_get_nbobjs_by_type(hwloc.get(), HWLOC_OBJ_PU);
  if (topology.cores <= 0) {  // virtual machines may not tell
    topology.cores = topology.hardware_threads;
  }
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(hwloc.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    topology.numa_nodes.push_back({static_cast<int>(node->os_index),
                                   Bytes(static_cast<int64_t>(node->attr->numanode.local_memory)),
                                   cores_in(node->cpuset)});
  }
  return topology;
}

std::string processor_name(const std::string& root) {
  return field_of(root + "/proc/cpuinfo", "model name").value_or("");
}

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  for (const CgroupFolder& group : cgroup_folders("cpu", root)) {
    // Version 2 has both numbers in one file: "max 100000", "150000 100000". Version 1 has -1 for
    // no limit.
    const bool old = group.version == 1;
    const std::string limit = first_line_of(group.path + (old ? "/cpu.cfs_quota_us" : "/cpu.max"));
    const auto quota =
        limit.starts_with('-') || limit.starts_with("max") ? std::nullopt : number_in(limit);
    const auto blank = limit.find(' ');
    const auto period = old                          ? number_of(group.path + "/cpu.cfs_period_us")
                        : blank == std::string::npos ? std::nullopt
                                                     : number_in(limit.substr(blank));
    if (quota && period && *period > 0) {
      const double share = static_cast<double>(*quota) / static_cast<double>(*period);
      least = std::min(least.value_or(share), share);
    }
  }
  return least;
}

std::optional<int> pci_numa_node(std::string address, const std::string& root) {
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char sign) { return std::tolower(sign); });
  const std::string text = first_line_of(root + "/sys/bus/pci/devices/" + address + "/numa_node");
  const auto number = text.starts_with('-') ? std::nullopt : number_in(text);
  return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

}  // namespace headrace::tiers
