#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "tiers/topology.h"

namespace headrace::tiers {

namespace {

/// cgroup v1 writes "no limit" as the largest multiple of the page size.
constexpr int64_t kUnlimitedFrom = int64_t{1} << 62;

std::optional<int64_t> parse_number(std::string_view text) {
  const auto begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) {
    return std::nullopt;
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

/// The only number of a one-line file; empty if it is missing or says "max".
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? parse_number(line) : std::nullopt;
}

/// The number after `key` in a file of lines "key number".
std::optional<int64_t> read_field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::string_view text = line;
    if (text.starts_with(key) && text.size() > key.size() &&
        (text[key.size()] == ' ' || text[key.size()] == ':')) {
      return parse_number(text.substr(key.size()));
    }
  }
  return std::nullopt;
}

/// One memory controller hierarchy: where it is mounted and how its files are called.
struct Hierarchy {
  std::string mount;
  std::string group;  ///< this process's, "/a/b"
  std::string_view limit_file;
  std::string_view usage_file;
  std::string_view cache_field;  ///< of memory.stat
};

/// From the lines "id:controllers:path" of /proc/self/cgroup.
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      for (const char* const mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        found.push_back({root + mount, group, "memory.max", "memory.current", "inactive_file"});
      }
    } else if (controllers.find(",memory,") != std::string::npos) {
      found.push_back({root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                       "memory.usage_in_bytes", "total_inactive_file"});
    }
  }
  return found;
}

/// Takes over the limit of `folder` if it leaves less room than what `limits` has.
void apply_group(const Hierarchy& hierarchy, const std::string& folder, MachineLimits& limits) {
  const auto limit = read_number(folder + "/" + std::string(hierarchy.limit_file));
  if (!limit || *limit >= kUnlimitedFrom) {
    return;
  }
  const int64_t usage = read_number(folder + "/" + std::string(hierarchy.usage_file)).value_or(0);
  const int64_t cache = read_field(folder + "/memory.stat", hierarchy.cache_field).value_or(0);
  const int64_t used = std::max(int64_t{0}, usage - cache);
  if (!limits.cgroup_limit ||
      *limit - used < limits.cgroup_limit->count() - limits.cgroup_usage.count()) {
    limits.cgroup_limit = Bytes(*limit);
    limits.cgroup_usage = Bytes(used);
  }
}

void read_cgroups(const std::string& root, MachineLimits& limits) {
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    // Limits of all groups above hold too. In a container the path may be that of the host: then
    // only the mount itself exists.
    std::string group = hierarchy.group == "/" ? "" : hierarchy.group;
    for (;;) {
      apply_group(hierarchy, hierarchy.mount + group, limits);
      if (group.empty()) {
        break;
      }
      group.resize(std::min(group.rfind('/'), group.size() - 1));
    }
  }
}

/// CAP_IPC_LOCK lifts the limit.
bool may_lock_without_limit(const std::string& root) {
  constexpr int kCapIpcLock = 14;
  std::ifstream file(root + "/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("CapEff:")) {
      const auto begin = line.find_first_not_of(" \t", 7);
      uint64_t bits = 0;
      if (begin != std::string::npos) {
        std::from_chars(line.data() + begin, line.data() + line.size(), bits, 16);
      }
      return ((bits >> kCapIpcLock) & 1U) != 0;
    }
  }
  return false;
}

[[noreturn]] void fail(const std::string& what, const std::string& path, int error_number) {
  IoError::Where where;
  where.path = path;
  where.error_number = error_number;
  throw IoError(what, where);
}

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

}  // namespace

Bytes MachineLimits::memory_usable() const {
  Bytes usable = memory_available;
  if (cgroup_limit) {
    usable = std::min(usable, *cgroup_limit - std::min(cgroup_usage, *cgroup_limit));
  }
  return usable;
}

MachineLimits machine_limits(const std::string& path, const std::string& root) {
  MachineLimits limits;
  const std::string meminfo = root + "/proc/meminfo";
  const auto total = read_field(meminfo, "MemTotal");
  const auto available = read_field(meminfo, "MemAvailable");
  if (!total || !available) {
    fail("MemTotal and MemAvailable cannot be read", meminfo, 0);
  }
  limits.memory_total = kKiB * *total;
  limits.memory_available = kKiB * *available;
  read_cgroups(root, limits);
  struct rlimit memlock {};
  if (::getrlimit(RLIMIT_MEMLOCK, &memlock) != 0) {
    fail("asking for RLIMIT_MEMLOCK failed", "getrlimit", errno);
  }
  if (memlock.rlim_cur != RLIM_INFINITY && !may_lock_without_limit(root)) {
    limits.memlock_limit = Bytes(static_cast<int64_t>(memlock.rlim_cur));
  }
  limits.disk_free = free_space(path);
  return limits;
}

}  // namespace headrace::tiers
