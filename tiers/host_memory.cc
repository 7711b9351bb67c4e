#include "tiers/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "tiers/hwloc_topology.h"
#include "tiers/topology.h"

namespace headrace::tiers {

namespace {

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

void check_available(Bytes size) {
  const MachineLimits limits = machine_limits("/");
  const Bytes usable = limits.memory_usable();
  if (size > usable) {
    throw CapacityError(fmt::format(
        "host memory of {} is not there: {} can be had now ({}); lower the host memory budget to "
        "fit, or end what else uses memory",
        format_bytes(size), format_bytes(usable),
        limits.cgroup_limit && usable < limits.memory_available
            ? fmt::format("the cgroup's limit is {}", format_bytes(*limits.cgroup_limit))
            : fmt::format("the machine has {}", format_bytes(limits.memory_total))));
  }
}

struct BitmapFree {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};

}  // namespace

HostMemory::HostMemory(Bytes size, bool pin_pages, std::optional<int> numa_node) : size_(size) {
  HR_CHECK(size >= Bytes(0), "host memory of {} bytes", size);
  check_available(size);
  void* const mapped = ::mmap(nullptr, mapped_size(), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw CapacityError(
        fmt::format("host memory of {} cannot be mapped: {}; lower the host memory "
                    "budget or raise the limit (ulimit -v, vm.max_map_count)",
                    format_bytes(size), errno_text(errno)));
  }
  data_ = static_cast<std::byte*>(mapped);
  try {
    // A hint; kernels without transparent huge pages refuse it.
    if (::madvise(data_, mapped_size(), MADV_HUGEPAGE) != 0) {
      log_debug("no huge pages for the host memory: {}", errno_text(errno));
    }
    bind(numa_node);
    if (pin_pages) {
      pin();
    }
  } catch (...) {
    ::munmap(data_, mapped_size());
    throw;
  }
}

HostMemory::~HostMemory() {
  if (::munmap(data_, mapped_size()) != 0) {  // unlocks too
    log_warning("unmapping the host memory: {}", errno_text(errno));
  }
}

size_t HostMemory::mapped_size() const {
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  return static_cast<size_t>(align_up(std::max(size_.count(), int64_t{1}), page));
}

void HostMemory::bind(std::optional<int> numa_node) {
  const HwlocTopology topology = load_hwloc_topology();
  const int nodes = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE);
  const std::unique_ptr<hwloc_bitmap_s, BitmapFree> set(
      hwloc_bitmap_dup(hwloc_topology_get_allowed_nodeset(topology.get())));
  HR_CHECK(set != nullptr, "hwloc has no memory for a node set");
  if (numa_node) {
    const auto wanted = static_cast<unsigned>(*numa_node);
    if (*numa_node < 0 || hwloc_bitmap_isset(set.get(), wanted) == 0) {
      throw InputError(fmt::format("NUMA node {} is not one that this process may use ({} there)",
                                   *numa_node, nodes));
    }
    hwloc_bitmap_only(set.get(), wanted);
  }
  if (nodes < 2) {
    return;
  }
  const auto policy = numa_node ? HWLOC_MEMBIND_BIND : HWLOC_MEMBIND_INTERLEAVE;
  if (hwloc_set_area_membind(topology.get(), data_, mapped_size(), set.get(), policy,
                             HWLOC_MEMBIND_BYNODESET) != 0) {
    log_message_once(LogLevel::warning, "numa",
                     fmt::format("host memory is not placed on NUMA nodes as planned ({}): copies "
                                 "may be slower",
                                 errno_text(errno)));
  }
}

void HostMemory::pin() {
  is_pinned_ = ::mlock(data_, mapped_size()) == 0;
  if (is_pinned_) {
    return;
  }
  const int error_number = errno;
  ::munlock(data_, mapped_size());
  const MachineLimits limits = machine_limits("/");
  log_message_once(
      LogLevel::warning, "mlock",
      fmt::format(
          "host memory of {} is not pinned ({}; memlock limit {}): its pages may be swapped "
          "out under memory pressure, and I/O pins them for every transfer; raise ulimit -l",
          format_bytes(size_), errno_text(error_number),
          limits.memlock_limit ? format_bytes(*limits.memlock_limit) : "none"));
}

}  // namespace headrace::tiers
