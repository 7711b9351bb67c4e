#include "device/cpu/cpu_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::device::cpu {

namespace {

/// What new pages the system can still give (free memory, reclaimable caches and swap); nothing
/// where /proc/meminfo cannot be read.
std::optional<Bytes> available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  int64_t total_kib = 0;
  int found = 0;
  std::string key;
  int64_t value_kib = 0;
  std::string unit;
  while (meminfo >> key >> value_kib && std::getline(meminfo, unit)) {
    if (key == "MemAvailable:" || key == "SwapFree:") {
      total_kib += value_kib;
      ++found;
    }
  }
  if (found != 2) {
    return std::nullopt;
  }
  return kKiB * total_kib;
}

std::string describe(const std::optional<Bytes>& available) {
  return available ? format_bytes(*available) : std::string("an unknown amount");
}

}  // namespace

CpuMemory::CpuMemory(Bytes size) : size_(size) {
  HR_CHECK(size.count() >= 0, "allocation of {} bytes", size);
  const auto available = available_memory();
  if (available && size > *available) {
    throw CapacityError(fmt::format(
        "cpu device: {} of memory were asked for, the system has {} available; lower the memory "
        "budget of the device or stop other programs",
        format_bytes(size), describe(available)));
  }
  const Bytes page(sysconf(_SC_PAGESIZE));
  mapped_bytes_ = static_cast<size_t>(align_up(std::max(size, Bytes(1)), page).count());
  void* const mapping =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    throw CapacityError(
        fmt::format("cpu device: cannot map {} of memory ({}); the system has {} available; check "
                    "`ulimit -v` and vm.overcommit_memory, or lower the memory budget",
                    format_bytes(size), std::strerror(errno), describe(available)));
  }
  data_ = static_cast<std::byte*>(mapping);
  // Huge pages only save time: a kernel without them refuses with EINVAL and all still works.
  if (madvise(mapping, mapped_bytes_, MADV_HUGEPAGE) != 0) {
    log_message_once(LogLevel::debug, "cpu-device-huge-pages",
                     fmt::format("cpu device: no transparent huge pages ({}); using small pages",
                                 std::strerror(errno)));
  }
}

CpuMemory::~CpuMemory() {
  munmap(data_, mapped_bytes_);
}

}  // namespace headrace::device::cpu
