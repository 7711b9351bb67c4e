#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace headrace::tiers {

struct NumaNode {
  int os_index = 0;
  Bytes memory;
  int cores = 0;
};

/// The part of the machine that this process may use.
struct Topology {
  int cores = 0;             ///< physical
  int hardware_threads = 0;  ///< logical CPUs
  std::vector<NumaNode> numa_nodes;
};

/// Asks hwloc. InternalError if it fails.
Topology detect_topology();

/// "AMD EPYC 9R14"; empty where the system does not tell. Reads /proc below `root`.
std::string processor_name(const std::string& root = "");

/// Processors' worth of time that the process's control groups give it; nothing: no limit. Reads
/// /proc and /sys below `root`.
std::optional<double> cpu_quota(const std::string& root = "");

/// NUMA node that a PCI device ("0000:3b:00.0") is attached to; nothing where the machine has one
/// or does not tell. Reads /sys below `root`.
std::optional<int> pci_numa_node(std::string address, const std::string& root = "");

/// What bounds the memory and disk space of this process now.
struct MachineLimits {
  Bytes memory_total;
  Bytes memory_available;             ///< MemAvailable: of the whole machine
  std::optional<Bytes> cgroup_limit;  ///< the tightest limit on this process; empty: none
  Bytes cgroup_usage;                 ///< of that group, page cache that can be dropped not counted
  std::string cgroup_file;            ///< where that limit is written
  std::optional<Bytes> memlock_limit;  ///< empty: unlimited
  Bytes disk_free;                     ///< for this user, on the filesystem of the path

  /// What the process can still take: the smaller of the machine's and the group's rest.
  Bytes memory_usable() const;
};

/// `path`: a folder whose filesystem's free space is asked; its nearest existing parent counts.
/// Reads /proc and /sys below `root`. IoError where /proc/meminfo or the path cannot be read;
/// missing cgroup files mean no limit.
MachineLimits machine_limits(const std::string& path, const std::string& root = "");

/// What the file system of `path` has free, or would have once the missing folders are made;
/// IoError where it cannot be asked.
Bytes free_space(const std::string& path);

/// Of the filesystems that the folders lie on together, each once; 0 where one cannot be asked.
Bytes disk_capacity(const std::vector<std::string>& paths);

}  // namespace headrace::tiers
