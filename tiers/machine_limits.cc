#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/system_file.h"
#include "tiers/cgroup.h"
#include "tiers/topology.h"

namespace headrace::tiers {

namespace {

/// cgroup v1 writes "no limit" as the largest multiple of the page size.
constexpr int64_t kUnlimitedFrom = int64_t{1} << 62;

/// Takes over the limit of a group if it leaves less room than what `limits` has.
void apply_group(const CgroupFolder& group, MachineLimits& limits) {
  const bool old = group.version == 1;
  const std::string limit_file = group.path + (old ? "/memory.limit_in_bytes" : "/memory.max");
  const auto limit = number_of(limit_file);
  if (!limit || *limit >= kUnlimitedFrom) {
    return;
  }
  const int64_t usage =
      number_of(group.path + (old ? "/memory.usage_in_bytes" : "/memory.current")).value_or(0);
  const int64_t cache =
      number_of(group.path + "/memory.stat", old ? "total_inactive_file" : "inactive_file")
          .value_or(0);
  const int64_t used = std::max(int64_t{0}, usage - cache);
  if (!limits.cgroup_limit ||
      *limit - used < limits.cgroup_limit->count() - limits.cgroup_usage.count()) {
    limits.cgroup_limit = Bytes(*limit);
    limits.cgroup_usage = Bytes(used);
    limits.cgroup_file = limit_file;
  }
}

/// CAP_IPC_LOCK lifts the limit.
bool may_lock_without_limit(const std::string& root) {
  constexpr int kCapIpcLock = 14;
  const std::string text = field_of(root + "/proc/self/status", "CapEff").value_or("0");
  uint64_t bits = 0;
  std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  return ((bits >> kCapIpcLock) & 1U) != 0;
}

/// Of /proc/self/limits, whose columns are name, soft limit, hard limit, unit.
std::optional<int64_t> number_of_soft_limit(const std::string& root, std::string_view name) {
  const std::string text = field_of(root + "/proc/self/limits", name).value_or("");
  return text.starts_with("unlimited") ? std::nullopt : number_in(text);
}

[[noreturn]] void fail(const std::string& what, const std::string& path, int error_number) {
  IoError::Where where;
  where.path = path;
  where.error_number = error_number;
  throw IoError(what, where);
}

}  // namespace

Bytes free_space(const std::string& path) {
  std::filesystem::path at = std::filesystem::absolute(path);
  while (!std::filesystem::exists(at) && at.has_relative_path()) {
    at = at.parent_path();
  }
  struct statvfs info {};
  if (::statvfs(at.c_str(), &info) != 0) {
    fail("asking for the free disk space failed", at, errno);
  }
  return Bytes(static_cast<int64_t>(info.f_bavail)) * static_cast<int64_t>(info.f_frsize);
}

Bytes MachineLimits::memory_usable() const {
  Bytes usable = memory_available;
  if (cgroup_limit) {
    usable = std::min(usable, *cgroup_limit - std::min(cgroup_usage, *cgroup_limit));
  }
  return usable;
}

Bytes disk_capacity(const std::vector<std::string>& paths) {
  std::set<dev_t> counted;
  Bytes sum;
  for (const std::string& path : paths) {
    struct stat info {};
    struct statvfs space {};
    if (::stat(path.c_str(), &info) != 0 || ::statvfs(path.c_str(), &space) != 0) {
      return {};
    }
    if (counted.insert(info.st_dev).second) {
      sum += Bytes(static_cast<int64_t>(space.f_blocks)) * static_cast<int64_t>(space.f_frsize);
    }
  }
  return sum;
}

MachineLimits machine_limits(const std::string& path, const std::string& root) {
  MachineLimits limits;
  const std::string meminfo = root + "/proc/meminfo";
  const auto total = number_of(meminfo, "MemTotal");
  const auto available = number_of(meminfo, "MemAvailable");
  if (!total || !available) {
    fail("MemTotal and MemAvailable cannot be read", meminfo, 0);
  }
  limits.memory_total = kKiB * *total;
  limits.memory_available = kKiB * *available;
  for (const CgroupFolder& group : cgroup_folders("memory", root)) {
    apply_group(group, limits);
  }
  // The soft limit, which holds, comes first; "unlimited" is none.
  const auto memlock = number_of_soft_limit(root, "Max locked memory");
  if (memlock && !may_lock_without_limit(root)) {
    limits.memlock_limit = Bytes(*memlock);
  }
  limits.disk_free = free_space(path);
  return limits;
}

}  // namespace headrace::tiers
