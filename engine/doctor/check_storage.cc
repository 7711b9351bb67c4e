#include <fmt/format.h>

#include <cerrno>
#include <set>

#include "base/error.h"
#include "base/utc.h"
#include "engine/doctor/doctor.h"

namespace headrace::engine {

namespace {

/// Why the kernel refused, and who can lift it.
void explain_refusal(const aio::UringFacts& facts, int error, Finding& finding) {
  if (facts.disabled.value_or(0) > 0 && (error == EPERM || error == EACCES)) {
    finding.meaning = fmt::format("kernel.io_uring_disabled is {}.", *facts.disabled);
    finding.change =
        "sysctl kernel.io_uring_disabled=0 (with 1, members of the group "
        "kernel.io_uring_group may use it).";
  } else if (error == ENOSYS) {
    finding.meaning = fmt::format("Kernel {} has no io_uring, or a sandbox (gVisor) hides it.",
                                  facts.kernel.empty() ? "of unknown version" : facts.kernel);
    finding.change = "Use Linux 5.10 or newer, better 6.1, or another container runtime.";
  } else if (facts.has_seccomp_filter) {
    finding.meaning = "A seccomp filter is on this process; container runtimes forbid io_uring.";
    finding.change =
        "docker run --security-opt seccomp=unconfined, or a profile that allows "
        "io_uring_setup, io_uring_enter and io_uring_register.";
  } else if (error == ENOMEM) {
    finding.meaning = "The memlock limit leaves no room for a ring (kernels before 5.12 count it).";
    finding.change = "Raise ulimit -l.";
  } else {
    finding.meaning = "A security module (SELinux, AppArmor) may forbid it.";
    finding.change = "Look for the denial in the kernel's log (dmesg).";
  }
  finding.meaning +=
      " Transfers then go through a pool of threads, which cost CPU time and reach a "
      "lower rate.";
}

Finding ring(const aio::UringFacts& facts) {
  Finding finding{"io_uring", "io_uring"};
  finding.values = {{"kernel", facts.kernel},
                    {"works", facts.works()},
                    {"disabled", facts.disabled.value_or(0)},
                    {"seccomp_filter", facts.has_seccomp_filter}};
  const aio::RingTrial last =
      facts.setups.empty() ? aio::RingTrial{"none", ENOSYS} : facts.setups.back();
  if (facts.works()) {
    finding.fact = fmt::format("works, {} (kernel {})", last.setup, facts.kernel);
    finding.meaning = "Transfers to drives cost little CPU time.";
    if (facts.setups.size() > 1) {
      finding.verdict = Verdict::note;
      finding.meaning += fmt::format(" The kernel refuses {}, which would cost a little less.",
                                     facts.setups.front().setup);
      finding.change = "Use Linux 6.1 or newer.";
    }
    return finding;
  }
  finding.verdict = Verdict::problem;
  if (last.error == 0) {
    finding.fact = fmt::format("lacks operations (kernel {})", facts.kernel);
    explain_refusal(facts, ENOSYS, finding);
  } else {
    finding.fact = fmt::format("refused: {} (kernel {})", errno_text(last.error), facts.kernel);
    explain_refusal(facts, last.error, finding);
  }
  return finding;
}

Finding polling(const aio::UringFacts& facts) {
  Finding finding{"io_uring", "submission polling"};
  const int error = *facts.submission_poll;
  finding.fact = error == 0 ? "allowed" : "refused: " + errno_text(error);
  finding.values = {{"works", error == 0}};
  finding.meaning = error == 0 ? "headrace.io_submission: sq_poll can be used. It costs a core; "
                                 "`headrace probe` says whether it helps."
                               : "headrace.io_submission: sq_poll would fall back to interrupt.";
  return finding;
}

Finding storage(const aio::DriveFacts& facts, size_t nodes) {
  const aio::StorageIdentity& drive = facts.identity;
  Finding finding{"", "drive"};
  std::string name = drive.model;
  if (!drive.vendor.empty() && !name.starts_with(drive.vendor)) {
    name = drive.vendor + (name.empty() ? "" : " " + name);
  }
  finding.fact = drive.device.empty()
                     ? "no block device stands behind the folder"
                     : fmt::format("{}{}", drive.device, name.empty() ? "" : ", " + name);
  if (drive.rotational) {
    finding.fact += *drive.rotational ? ", rotating" : ", solid state or virtual";
  }
  if (drive.numa_node >= 0) {
    finding.fact += fmt::format(", NUMA node {}", drive.numa_node);
  }
  finding.values = {{"device", drive.device},
                    {"model", name},
                    {"rotational", drive.rotational.value_or(false)},
                    {"numa_node", int64_t{drive.numa_node}}};
  const bool is_virtual = drive.device.starts_with("vd") || drive.device.starts_with("xvd");
  if (drive.rotational.value_or(false) && is_virtual) {
    finding.verdict = Verdict::note;
    finding.meaning =
        "Virtual disks often call themselves rotating whatever is behind them; what it "
        "really gives is measured by `headrace probe`.";
    finding.change = "Nothing, where the probe finds it fast.";
  } else if (drive.rotational.value_or(false)) {
    finding.verdict = Verdict::problem;
    finding.meaning =
        "A rotating disk moves a tenth of what an NVMe drive does; every step waits "
        "for it.";
    finding.change = "Choose a folder on a solid-state drive.";
  } else if (nodes > 1 && drive.numa_node >= 0) {
    finding.meaning = "Memory of the drive's own node is nearest to it.";
    finding.change = fmt::format("Set headrace.numa_node to {} where one node's memory is enough.",
                                 drive.numa_node);
  } else {
    finding.meaning = "What it really gives is measured by `headrace probe`.";
  }
  return finding;
}

Finding file_system(const aio::DriveFacts& facts) {
  static const std::set<std::string> kInMemory = {"tmpfs", "ramfs", "devtmpfs"};
  static const std::set<std::string> kRemote = {"nfs", "nfs4",   "cifs", "smb2",
                                                "9p",  "lustre", "ceph", "fuse"};
  const std::string& name = facts.identity.file_system;
  Finding finding{"", "file system"};
  finding.fact =
      fmt::format("{}{}{}", name,
                  facts.mount.mount_point.empty() ? "" : ", mounted at " + facts.mount.mount_point,
                  facts.mount.options.empty() ? "" : " (" + facts.mount.options + ")");
  finding.values = {{"type", name},
                    {"mount_point", facts.mount.mount_point},
                    {"source", facts.mount.source},
                    {"options", facts.mount.options}};
  if (kInMemory.contains(name)) {
    finding.verdict = Verdict::problem;
    finding.meaning =
        "Its files are memory: state here takes from the budget it should relieve, and "
        "is gone after a restart.";
    finding.change = "Choose a folder on a drive.";
  } else if (kRemote.contains(name)) {
    finding.verdict = Verdict::note;
    finding.meaning = "Every transfer goes over the network or through another process.";
    finding.change = "Choose a local drive where there is one.";
  } else if (name == "overlay") {
    finding.verdict = Verdict::note;
    finding.meaning =
        "The container's own layer: slower than a volume, and gone with the container.";
    finding.change = "Mount a folder of the drive into the container (docker run -v).";
  } else if (name == "btrfs" || name == "zfs" || name == "bcachefs") {
    finding.verdict = Verdict::note;
    finding.meaning =
        "It writes every block anew and sums it up, though Headrace's files have "
        "checksums of their own; direct transfers are slower.";
    finding.change = "Use ext4 or xfs, or (btrfs) chattr +C on the empty folder.";
  } else if (facts.mount.has_option("discard")) {
    finding.verdict = Verdict::note;
    finding.meaning =
        "Mounted with discard: the drive is told of every freed block at once, which "
        "can stall transfers.";
    finding.change = "Mount without it and run fstrim from time to time.";
  } else if (facts.mount.has_option("sync") || facts.mount.has_option("dirsync")) {
    finding.verdict = Verdict::note;
    finding.meaning =
        "Mounted with sync: every write waits for the drive. Headrace syncs by itself "
        "where it has to.";
    finding.change = "Mount without sync.";
  } else {
    finding.meaning = "Nothing that slows transfers down.";
  }
  return finding;
}

Finding space(const aio::DriveFacts& facts) {
  const Bytes free = facts.identity.free_space;
  // Two generations of bf16 weights with the state that completes them.
  constexpr int64_t kBytesPerParameter = 24;
  Finding finding{"", "free space"};
  finding.fact = format_bytes(free);
  finding.values = {{"free", free.count()}};
  finding.meaning = fmt::format(
      "Room for the state of about {} parameters in bf16 (12 bytes each, and the next step's "
      "values "
      "beside the committed ones).",
      format_count(static_cast<double>(free.count() / kBytesPerParameter)));
  if (free < kGiB) {
    finding.verdict = Verdict::note;
    finding.change = "Free some space, or set headrace.durability: in_place, which needs half.";
  }
  return finding;
}

Finding direct_io(const aio::DriveFacts& facts) {
  Finding finding{"", "direct I/O"};
  if (!facts.not_writable.empty()) {
    finding.verdict = Verdict::problem;
    finding.fact = "no file can be made";
    finding.meaning = facts.not_writable + ".";
    finding.change = "Choose another folder, or change its rights.";
    return finding;
  }
  const int error = facts.direct_error.value_or(0);
  finding.values = {{"works", error == 0}};
  if (error == 0) {
    finding.fact = "works (O_DIRECT, 4 KiB)";
    finding.meaning = "Transfers go past the page cache: they take no memory beside the budget.";
    return finding;
  }
  finding.verdict = Verdict::note;
  finding.fact = "refused: " + errno_text(error);
  finding.meaning =
      "Transfers go through the page cache, which costs memory beside the budgets and "
      "a copy of every byte.";
  finding.change = "Choose a folder on ext4 or xfs.";
  return finding;
}

Finding endurance(const aio::DriveFacts& facts) {
  constexpr int kWorn = 80;
  const aio::Wear& wear = facts.identity.wear;
  Finding finding{"", "endurance"};
  if (!wear.percent_used) {
    finding.fact = "cannot be read: " + wear.unknown;
    finding.meaning =
        "Training with state on nvme writes a lot; `headrace train` prints the drive "
        "writes per day that a run amounts to.";
    return finding;
  }
  finding.fact = wear.text();
  finding.values = {{"percent_used", int64_t{*wear.percent_used}},
                    {"spare_percent", int64_t{wear.spare_percent}},
                    {"media_errors", wear.media_errors}};
  finding.meaning = "`headrace train` prints the drive writes per day that a run amounts to.";
  if (!wear.warnings.empty()) {
    finding.verdict = Verdict::problem;
    finding.change = "Copy what must not be lost, and use another drive.";
  } else if (*wear.percent_used >= kWorn) {
    finding.verdict = *wear.percent_used >= 100 ? Verdict::problem : Verdict::note;
    finding.change = "Keep optimizer state in host memory where it fits, or replace the drive.";
  }
  return finding;
}

Finding measured(const aio::DriveFacts& facts, const proto::StorageProfile* profile) {
  Finding finding{"", "measured rates"};
  if (profile == nullptr) {
    finding.verdict = Verdict::note;
    finding.fact = "none";
    finding.meaning =
        "The first schedule of a run assumes 2 GB/s; `headrace plan` knows no better.";
    finding.change = fmt::format("headrace probe --path {}", facts.folder);
    return finding;
  }
  const proto::StoragePoint& best = profile->best();
  const auto rate = [](double value) {
    return format_bytes(Bytes(static_cast<int64_t>(value))) + "/s";
  };
  finding.fact =
      fmt::format("read {}, write {}, both at once {}, with blocks of {} and depth {} ({})",
                  rate(best.read_rate()), rate(best.write_rate()), rate(best.mixed_rate()),
                  format_bytes(Bytes(best.block_size())), best.queue_depth(),
                  utc_text(profile->measured_unix_seconds(), "%Y-%m-%d"));
  finding.values = {{"read_rate", best.read_rate()},
                    {"write_rate", best.write_rate()},
                    {"mixed_rate", best.mixed_rate()},
                    {"block_size", int64_t{best.block_size()}},
                    {"queue_depth", int64_t{best.queue_depth()}}};
  finding.meaning = "Schedules and shares of several drives start from these rates.";
  return finding;
}

}  // namespace

std::vector<Finding> check_io_uring(const aio::UringFacts& facts) {
  std::vector<Finding> findings = {ring(facts)};
  if (facts.works() && facts.submission_poll) {
    findings.push_back(polling(facts));
  }
  return findings;
}

std::vector<Finding> check_drive(const aio::DriveFacts& facts, const proto::StorageProfile* profile,
                                 size_t nodes) {
  std::vector<Finding> findings;
  if (!facts.absent.empty()) {
    findings.push_back({"",
                        "folder",
                        Verdict::problem,
                        "cannot be used",
                        facts.absent + ".",
                        "Make it, or name another with --path.",
                        {}});
  } else {
    findings = {storage(facts, nodes), file_system(facts), space(facts),
                direct_io(facts),      endurance(facts),   measured(facts, profile)};
  }
  for (Finding& finding : findings) {
    finding.section = "storage below " + facts.folder;
  }
  return findings;
}

}  // namespace headrace::engine
