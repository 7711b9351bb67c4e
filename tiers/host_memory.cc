#include "tiers/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "tiers/huge_pages.h"
#include "tiers/hwloc_topology.h"
#include "tiers/topology.h"

namespace headrace::tiers {

namespace {

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

constexpr Bytes kHugePage{int64_t{2} << 20};
/// Asks for pages of 2 MiB whatever the system's default is (log2 of the size, MAP_HUGE_SHIFT).
constexpr int kHugePageFlag = 21 << 26;

void trim(std::byte* begin, size_t size) {
  if (size > 0 && ::munmap(begin, size) != 0) {
    log_debug("unmapping {} spare bytes: {}", size, errno_text(errno));
  }
}

struct BitmapFree {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};

}  // namespace

HostMemory::HostMemory(Bytes size, bool pin_pages, std::optional<int> numa_node) : size_(size) {
  HR_CHECK(size >= Bytes(0), "host memory of {} bytes", size);
  if (!map_explicit(numa_node)) {
    check_available(size);
    map_transparent(numa_node);
  }
  log_message_once(
      LogLevel::debug, std::string("huge pages ") + huge_pages(),
      fmt::format("host memory of {} on huge pages: {}", format_bytes(size), huge_pages()));
  if (pin_pages) {
    pin();
  }
}

HostMemory::~HostMemory() {
  unmap();
}

void HostMemory::unmap() {
  if (data_ != nullptr && ::munmap(data_, mapped_size_) != 0) {  // unlocks too
    log_warning("unmapping the host memory: {}", errno_text(errno));
  }
  data_ = nullptr;
}

const char* HostMemory::huge_pages() const {
  switch (huge_pages_) {
    case HugePages::explicit_pages:
      return "explicit";
    case HugePages::transparent:
      return "transparent";
    case HugePages::none:
      break;
  }
  return "none";
}

/// Maps pages of 2 MiB that the system has set aside; false, with nothing mapped, where there are
/// not enough. They are taken at once: a page that is missing on a node would otherwise end the
/// process with SIGBUS when it is first touched.
bool HostMemory::map_explicit(std::optional<int> numa_node) {
#ifdef MADV_POPULATE_WRITE
  if (size_ < kHugePage) {
    return false;
  }
  const auto size = static_cast<size_t>(align_up(size_, kHugePage).count());
  void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | kHugePageFlag, -1, 0);
  if (mapped == MAP_FAILED) {
    return false;
  }
  data_ = static_cast<std::byte*>(mapped);
  mapped_size_ = size;
  try {
    bind(numa_node);
  } catch (...) {
    unmap();
    throw;
  }
  if (::madvise(data_, mapped_size_, MADV_POPULATE_WRITE) != 0) {
    log_debug("explicit huge pages for {} cannot be taken: {}", format_bytes(size_),
              errno_text(errno));
    unmap();
    return false;
  }
  huge_pages_ = HugePages::explicit_pages;
  return true;
#else
  return false;
#endif
}

void HostMemory::map_transparent(std::optional<int> numa_node) {
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  const Bytes alignment = size_ < kHugePage ? Bytes(page) : kHugePage;
  mapped_size_ = static_cast<size_t>(align_up(std::max(size_.count(), int64_t{1}), page));
  // Room to cut the mapping so that it begins at a huge page.
  const size_t extra = static_cast<size_t>(alignment.count() - page);
  void* const mapped = ::mmap(nullptr, mapped_size_ + extra, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw CapacityError(
        fmt::format("host memory of {} cannot be mapped: {}; lower the host memory "
                    "budget or raise the limit (ulimit -v, vm.max_map_count)",
                    format_bytes(size_), errno_text(errno)));
  }
  auto* const begin = static_cast<std::byte*>(mapped);
  data_ = align_up(begin, alignment.count());
  const auto before = static_cast<size_t>(data_ - begin);
  trim(begin, before);
  trim(data_ + mapped_size_, extra - before);
  // A hint; kernels without transparent huge pages refuse it.
  const bool advised = ::madvise(data_, mapped_size_, MADV_HUGEPAGE) == 0;
  huge_pages_ = advised && size_ >= kHugePage && huge_page_facts().gives_transparent()
                    ? HugePages::transparent
                    : HugePages::none;
  try {
    bind(numa_node);
  } catch (...) {
    unmap();
    throw;
  }
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
      throw InputError(fmt::format(
          "NUMA node {} (headrace.numa_node) is not one that this process may use ({} there)",
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
