#include <fmt/format.h>

#include "base/error.h"
#include "engine/doctor/doctor.h"
#include "tiers/huge_pages.h"

namespace headrace::engine {

namespace {

constexpr Bytes kLittle{int64_t{2} << 30};

Finding memory(const tiers::MachineLimits& limits) {
  const Bytes usable = limits.memory_usable();
  Finding finding{"memory", "memory"};
  finding.fact = fmt::format("{}, of which {} can be had now", format_bytes(limits.memory_total),
                             format_bytes(usable));
  finding.values = {{"total", limits.memory_total.count()}, {"usable", usable.count()}};
  finding.meaning =
      "Budgets (--host-memory, and --device-memory where no GPU is used) plus 200 MiB "
      "must fit into what can be had; without --host-memory a run takes a share.";
  if (usable < kLittle) {
    finding.verdict = Verdict::note;
    finding.change = "End what else uses memory.";
  }
  return finding;
}

Finding cgroup(const tiers::MachineLimits& limits, const std::string& root) {
  Finding finding{"memory", "cgroup limit"};
  if (!limits.cgroup_limit) {
    finding.fact = "none";
    finding.meaning = "The machine's memory is the limit.";
    return finding;
  }
  const std::string file = limits.cgroup_file.substr(root.size());
  finding.fact = fmt::format("{}, {} in use ({})", format_bytes(*limits.cgroup_limit),
                             format_bytes(limits.cgroup_usage), file);
  finding.values = {{"limit", limits.cgroup_limit->count()},
                    {"usage", limits.cgroup_usage.count()},
                    {"file", file}};
  if (*limits.cgroup_limit >= limits.memory_total) {
    finding.meaning = "It is no less than the machine has.";
    return finding;
  }
  finding.verdict = Verdict::note;
  finding.meaning =
      "The kernel kills the process when the group goes above it; Headrace counts "
      "with it and refuses budgets that do not fit.";
  finding.change =
      "Raise the container's memory limit (docker run --memory, Kubernetes "
      "limits.memory, systemd MemoryMax).";
  return finding;
}

Finding memlock(const tiers::MachineLimits& limits) {
  Finding finding{"memory", "memlock"};
  if (!limits.memlock_limit) {
    finding.fact = "unlimited";
    finding.meaning =
        "The host budget is locked in memory: it is never swapped out, and the kernel "
        "need not pin it for every transfer.";
    return finding;
  }
  finding.fact = format_bytes(*limits.memlock_limit);
  finding.values = {{"limit", limits.memlock_limit->count()}};
  finding.verdict = Verdict::note;
  finding.meaning =
      "A larger host budget is not locked: it may be swapped out when memory is "
      "short, and every transfer pins its pages, which costs CPU time.";
  finding.change =
      "ulimit -l unlimited; in /etc/security/limits.conf \"* - memlock unlimited\", for "
      "a container docker run --ulimit memlock=-1 (or CAP_IPC_LOCK).";
  return finding;
}

Finding huge_pages(const tiers::HugePageFacts& facts) {
  Finding finding{"memory", "huge pages"};
  finding.fact = fmt::format("transparent: {}; explicit: {} of {} of 2 MiB free",
                             facts.transparent.empty() ? "none in this kernel" : facts.transparent,
                             facts.explicit_free, facts.explicit_pages);
  finding.values = {{"transparent", facts.transparent},
                    {"explicit_pages", facts.explicit_pages},
                    {"explicit_free", facts.explicit_free}};
  if (facts.gives_transparent() || facts.explicit_free > 0) {
    finding.meaning = "The host budget lies on huge pages, explicit ones where enough are free.";
    return finding;
  }
  finding.verdict = Verdict::problem;
  finding.meaning = "On pages of 4 KiB direct transfers can run at half of the drive's rate.";
  finding.change =
      "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or set pages aside: "
      "sysctl vm.nr_hugepages=<host budget / 2 MiB>.";
  return finding;
}

}  // namespace

std::vector<Finding> check_memory(const std::string& root) {
  std::vector<Finding> findings;
  try {
    const tiers::MachineLimits limits = tiers::machine_limits("/", root);
    findings = {memory(limits), cgroup(limits, root), memlock(limits)};
  } catch (const IoError& error) {
    findings.push_back(
        {"memory", "memory", Verdict::problem, "unknown", error.what(), "Mount /proc."});
  }
  findings.push_back(huge_pages(tiers::huge_page_facts(root)));
  return findings;
}

}  // namespace headrace::engine
