#include "engine/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/fake_system.h"

namespace headrace::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Finding& find(const std::vector<Finding>& findings, const std::string& name) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& finding) { return finding.name == name; });
  if (found == findings.end()) {
    throw std::out_of_range("no finding " + name);
  }
  return *found;
}

template <class Value>
Value value(const Finding& finding, const std::string& name) {
  for (const auto& [key, held] : finding.values) {
    if (key == name) {
      return std::get<Value>(held);
    }
  }
  throw std::out_of_range("no value " + name);
}

tiers::Topology one_node() {
  return {.cores = 4, .hardware_threads = 8, .numa_nodes = {{0, kGiB * 16, 4}}};
}

class DoctorOfAMachine : public ::testing::Test {
 protected:
  DoctorOfAMachine() {
    system_.put("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n");
    system_.put("/proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n"
                "Max locked memory         unlimited            unlimited            bytes\n");
    system_.put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  }
  std::vector<Finding> memory() { return check_memory(system_.root()); }
  Finding quota() {
    return find(check_processor(one_node(), {"AVX2", true, false}, system_.root()), "CPU quota");
  }
  test::FakeSystem system_;
};

TEST_F(DoctorOfAMachine, NothingIsWrongWithAGoodOne) {
  for (const Finding& finding : memory()) {
    EXPECT_EQ(finding.verdict, Verdict::ok) << finding.name << ": " << finding.fact;
    EXPECT_FALSE(finding.meaning.empty()) << finding.name;
  }
  EXPECT_EQ(value<int64_t>(find(memory(), "memory"), "total"), (kGiB * 64).count());
  EXPECT_EQ(value<int64_t>(find(memory(), "memory"), "usable"), (kGiB * 32).count());
}

TEST_F(DoctorOfAMachine, ACgroupLimitIsNamedWithItsFile) {
  system_.put("/proc/self/cgroup", "0::/jobs/mine\n");
  system_.put("/sys/fs/cgroup/jobs/memory.max", "8589934592\n");
  system_.put("/sys/fs/cgroup/jobs/memory.current", "1073741824\n");
  const Finding limit = find(memory(), "cgroup limit");
  EXPECT_EQ(limit.verdict, Verdict::note);
  EXPECT_THAT(limit.fact, HasSubstr("8.00 GiB"));
  EXPECT_EQ(value<std::string>(limit, "file"), "/sys/fs/cgroup/jobs/memory.max");
  EXPECT_EQ(value<int64_t>(limit, "usage"), kGiB.count());
  EXPECT_EQ(value<int64_t>(find(memory(), "memory"), "usable"), (kGiB * 7).count());
}

TEST_F(DoctorOfAMachine, ACgroupOfVersion1IsRead) {
  system_.put("/proc/self/cgroup", "4:cpu,memory:/a\n");
  system_.put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
  const Finding limit = find(memory(), "cgroup limit");
  EXPECT_EQ(value<int64_t>(limit, "limit"), kGiB.count());
  EXPECT_EQ(find(memory(), "memory").verdict, Verdict::note) << "1 GiB is little";
}

TEST_F(DoctorOfAMachine, ASmallMemlockLimitIsANoteUnlessACapabilityLiftsIt) {
  system_.put("/proc/self/limits",
              "Max locked memory         8388608              unlimited            bytes\n");
  Finding memlock = find(memory(), "memlock");
  EXPECT_EQ(memlock.verdict, Verdict::note);
  EXPECT_EQ(value<int64_t>(memlock, "limit"), 8388608);
  EXPECT_THAT(memlock.change, HasSubstr("ulimit -l"));
  system_.put("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  EXPECT_EQ(find(memory(), "memlock").verdict, Verdict::ok);
}

TEST_F(DoctorOfAMachine, WithoutAnyHugePagesItIsAProblem) {
  system_.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(find(memory(), "huge pages").verdict, Verdict::problem);
  system_.put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
  system_.put("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500\n");
  const Finding pages = find(memory(), "huge pages");
  EXPECT_EQ(pages.verdict, Verdict::ok);
  EXPECT_EQ(value<int64_t>(pages, "explicit_free"), 500);
}

TEST_F(DoctorOfAMachine, AQuotaBelowTheThreadsIsANote) {
  EXPECT_EQ(quota().verdict, Verdict::ok);
  system_.put("/proc/self/cgroup", "0::/a\n3:cpu,cpuacct:/b\n");
  system_.put("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
  system_.put("/sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "-1\n");
  system_.put("/sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota().fact, "none");
  system_.put("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota().verdict, Verdict::note);
  EXPECT_DOUBLE_EQ(value<double>(quota(), "processors"), 2.5);
  system_.put("/sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "150000\n");
  EXPECT_DOUBLE_EQ(value<double>(quota(), "processors"), 1.5) << "the tighter one holds";
  EXPECT_THAT(quota().change, HasSubstr("OMP_NUM_THREADS=1"));
}

TEST_F(DoctorOfAMachine, ProcessorAndNodes) {
  system_.put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n");
  tiers::Topology topology = one_node();
  auto findings = check_processor(topology, {"AVX3", true, true}, system_.root());
  EXPECT_THAT(find(findings, "processor").fact, HasSubstr("Some CPU @ 2 GHz, 4 cores, 8"));
  EXPECT_EQ(find(findings, "NUMA nodes").verdict, Verdict::ok);
  topology.numa_nodes.push_back({1, kGiB * 8, 2});
  findings = check_processor(topology, {"SSE4", false, false}, system_.root());
  EXPECT_THAT(find(findings, "NUMA nodes").fact, HasSubstr("1: 2 cores, 8.00 GiB"));
  EXPECT_THAT(find(findings, "NUMA nodes").change, HasSubstr("headrace.numa_node"));
  EXPECT_EQ(find(findings, "optimizer").verdict, Verdict::problem);
}

TEST(Doctor, ASystemThatSaysNothingIsNoFailure) {
  const test::FakeSystem empty;
  EXPECT_EQ(find(check_memory(empty.root()), "memory").verdict, Verdict::problem);
  EXPECT_THAT(
      find(check_processor(one_node(), {"AVX2", true, false}, empty.root()), "processor").fact,
      HasSubstr("unknown model"));
  EXPECT_EQ(aio::mount_of("/a", empty.root()).mount_point, "");
  EXPECT_EQ(aio::read_uring_facts(empty.root()).kernel, "");
  EXPECT_EQ(find(check_gpus(read_gpu_facts(empty.root())), "NVIDIA GPU").fact,
            "no NVIDIA GPU found");
}

aio::UringFacts facts_with(int error) {
  aio::UringFacts facts;
  facts.kernel = "6.1.0";
  facts.setups = {{"best", error}};
  facts.has_operations = error == 0;
  return facts;
}

TEST(DoctorOfIoUring, SaysWhatBlocksIt) {
  EXPECT_EQ(check_io_uring(facts_with(0)).front().verdict, Verdict::ok);

  aio::UringFacts facts = facts_with(EPERM);
  facts.disabled = 2;
  facts.has_seccomp_filter = true;  // the setting is the nearer cause
  Finding finding = check_io_uring(facts).front();
  EXPECT_EQ(finding.verdict, Verdict::problem);
  EXPECT_THAT(finding.change, HasSubstr("sysctl kernel.io_uring_disabled=0"));

  facts.disabled = 0;
  finding = check_io_uring(facts).front();
  EXPECT_THAT(finding.change, HasSubstr("seccomp"));
  facts.has_seccomp_filter = false;
  EXPECT_THAT(check_io_uring(facts).front().meaning, HasSubstr("security module"));
  EXPECT_THAT(check_io_uring(facts_with(ENOSYS)).front().meaning, HasSubstr("6.1.0"));
  EXPECT_THAT(check_io_uring(facts_with(ENOMEM)).front().change, HasSubstr("ulimit -l"));
  EXPECT_EQ(check_io_uring({}).front().verdict, Verdict::problem);
}

TEST(DoctorOfIoUring, AnOlderSetupIsANote) {
  aio::UringFacts facts = facts_with(0);
  facts.setups = {{"best", EINVAL}, {"plain", 0}};
  facts.submission_poll = EPERM;
  const auto findings = check_io_uring(facts);
  EXPECT_EQ(findings.front().verdict, Verdict::note);
  EXPECT_THAT(findings.front().meaning, HasSubstr("refuses best"));
  EXPECT_THAT(find(findings, "submission polling").fact, HasSubstr("refused"));
}

TEST(DoctorOfIoUring, ReadsTheSystem) {
  test::FakeSystem system;
  system.put("/proc/sys/kernel/osrelease", "6.6.1-test\n");
  system.put("/proc/sys/kernel/io_uring_disabled", "1\n");
  system.put("/proc/self/status", "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n");
  const aio::UringFacts facts = aio::read_uring_facts(system.root());
  EXPECT_EQ(facts.kernel, "6.6.1-test");
  EXPECT_EQ(facts.disabled, 1);
  EXPECT_TRUE(facts.has_seccomp_filter);
}

TEST(DoctorOfDrives, TheLongestMountPointHolds) {
  test::FakeSystem system;
  system.put("/proc/self/mountinfo",
             "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
             "23 22 259:1 / /data rw,noatime - xfs /dev/nvme0n1p1 rw,discard\n"
             "24 22 0:5 / /data\\040two rw - tmpfs tmpfs rw,size=1k\n"
             "25 22 0:6 / /data rw master:3 propagate_from:2 - btrfs /dev/sdb rw\n"
             "broken line\n");
  const auto at = [&](const std::string& folder) { return aio::mount_of(folder, system.root()); };
  EXPECT_EQ(at("/home").source, "/dev/sda1");
  EXPECT_EQ(at("/data").file_system, "btrfs") << "mounted over the other";
  EXPECT_EQ(at("/data/deep").mount_point, "/data");
  EXPECT_EQ(at("/database").mount_point, "/");
  EXPECT_EQ(at("/data two/x").file_system, "tmpfs");
  EXPECT_TRUE(at("/home").has_option("relatime"));
  EXPECT_FALSE(at("/home").has_option("rel"));
}

aio::DriveFacts good_drive() {
  aio::DriveFacts facts;
  facts.folder = "/nvme";
  facts.identity.file_system = "ext4";
  facts.identity.device = "nvme0n1";
  facts.identity.model = "Drive 1";
  facts.identity.rotational = false;
  facts.identity.free_space = kGiB * 500;
  facts.identity.wear.percent_used = 3;
  facts.mount = {"/nvme", "/dev/nvme0n1", "ext4", "rw,noatime"};
  facts.direct_error = 0;
  return facts;
}

Verdict verdict_of(const aio::DriveFacts& facts, const std::string& name) {
  return find(check_drive(facts, nullptr, 1), name).verdict;
}

TEST(DoctorOfDrives, JudgesWhatItFinds) {
  proto::StorageProfile profile;
  profile.mutable_best()->set_read_rate(2147483648.0);
  profile.set_measured_unix_seconds(1700000000);  // 2023-11-14
  for (const Finding& finding : check_drive(good_drive(), &profile, 1)) {
    EXPECT_EQ(finding.verdict, Verdict::ok) << finding.name << ": " << finding.fact;
    EXPECT_EQ(finding.section, "storage below /nvme");
  }
  const auto findings = check_drive(good_drive(), &profile, 1);
  EXPECT_THAT(find(findings, "measured rates").fact, HasSubstr("read 2.00 GiB/s"));
  EXPECT_THAT(find(findings, "measured rates").fact, HasSubstr("2023-11-14"));
  EXPECT_EQ(verdict_of(good_drive(), "measured rates"), Verdict::note) << "never probed";

  aio::DriveFacts facts = good_drive();
  facts.identity.rotational = true;
  facts.identity.device = "sda";
  EXPECT_EQ(verdict_of(facts, "drive"), Verdict::problem);
  facts.identity.device = "vda";
  EXPECT_EQ(verdict_of(facts, "drive"), Verdict::note) << "virtual disks say so without reason";
  facts = good_drive();
  facts.identity.file_system = "tmpfs";
  EXPECT_EQ(verdict_of(facts, "file system"), Verdict::problem);
  facts.identity.file_system = "nfs";
  EXPECT_EQ(verdict_of(facts, "file system"), Verdict::note);
  facts = good_drive();
  facts.mount.options = "rw,discard";
  EXPECT_EQ(verdict_of(facts, "file system"), Verdict::note);
  facts = good_drive();
  facts.direct_error = EINVAL;
  EXPECT_EQ(verdict_of(facts, "direct I/O"), Verdict::note);
  facts.not_writable = "read-only";
  EXPECT_EQ(verdict_of(facts, "direct I/O"), Verdict::problem);
  facts = good_drive();
  facts.identity.wear.percent_used = 85;
  EXPECT_EQ(verdict_of(facts, "endurance"), Verdict::note);
  facts.identity.wear.percent_used = 120;
  EXPECT_EQ(verdict_of(facts, "endurance"), Verdict::problem);
  facts = good_drive();
  facts.identity.wear.warnings = {"it accepts no more writes"};
  EXPECT_EQ(verdict_of(facts, "endurance"), Verdict::problem);
  EXPECT_THAT(find(check_drive(facts, nullptr, 1), "endurance").fact, HasSubstr("no more writes"));
  facts = good_drive();
  facts.identity.free_space = kMiB;
  EXPECT_EQ(verdict_of(facts, "free space"), Verdict::note);
}

TEST(DoctorOfDrives, ARealFolderAndOneThatIsNotThere) {
  const test::TemporaryFolder folder;
  const aio::DriveFacts facts = aio::examine_drive(folder.path());
  EXPECT_EQ(facts.absent, "");
  EXPECT_EQ(facts.not_writable, "");
  EXPECT_TRUE(facts.direct_error.has_value());
  EXPECT_NE(facts.mount.mount_point, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing is left behind";
  const auto findings = check_drive(aio::examine_drive(folder / "missing"), nullptr, 1);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings.front().verdict, Verdict::problem);
}

TEST(DoctorOfGpus, ReadsBusAndDriver) {
  test::FakeSystem system;
  const std::string bus = "/sys/bus/pci/devices/0000:3b:00.0";
  system.put(bus + "/vendor", "0x10de\n");
  system.put(bus + "/class", "0x030200\n");
  system.put(bus + "/numa_node", "1\n");
  system.put("/sys/bus/pci/devices/0000:3c:00.0/vendor", "0x10de\n");
  system.put("/sys/bus/pci/devices/0000:3c:00.0/class", "0x040300\n");  // its sound
  GpuFacts facts = read_gpu_facts(system.root());
  EXPECT_EQ(facts.on_bus, 1);
  facts.library_error = "libcuda.so.1: cannot open shared object file";
  Finding finding = check_gpus(facts).front();
  EXPECT_EQ(finding.verdict, Verdict::note);
  EXPECT_THAT(finding.fact, HasSubstr("no kernel driver"));
  EXPECT_THAT(finding.change, HasSubstr("Install the NVIDIA driver"));

  system.put("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15\n");
  system.put("/proc/driver/nvidia/gpus/0000:3B:00.0/information",
             "Model: \t\t NVIDIA H200\nIRQ:   \t\t 10\n");
  facts = read_gpu_facts(system.root());
  EXPECT_EQ(facts.driver, "535.183.01");
  ASSERT_EQ(facts.gpus.size(), 1U);
  EXPECT_EQ(facts.gpus.front().name, "NVIDIA H200");
  EXPECT_EQ(facts.gpus.front().numa_node, 1);
  finding = check_gpus(facts).front();
  EXPECT_THAT(finding.fact, HasSubstr("driver 535.183.01"));
  EXPECT_EQ(finding.verdict, Verdict::note);
  facts.backend_refusal = "the CUDA backend does not load";
  EXPECT_THAT(check_gpus(facts).front().meaning,
              HasSubstr("on the CPU: the CUDA backend does not load."));
  facts.backend = "NVIDIA H200, compute capability 9.0";
  finding = check_gpus(facts).front();
  EXPECT_EQ(finding.verdict, Verdict::ok);
  EXPECT_THAT(finding.meaning, HasSubstr("compute capability 9.0"));
}

TEST(DoctorOfDirectReads, SaysWhyThereAreNone) {
  DirectReadFacts facts;
  facts.folder = "/nvme";
  facts.refusal = "cuFile is not there";
  Finding finding = check_direct_reads(facts).front();
  EXPECT_EQ(finding.verdict, Verdict::ok) << "without a GPU nothing is missing";
  EXPECT_EQ(finding.name, "GPUDirect Storage to /nvme");
  EXPECT_EQ(finding.fact, "not possible here: cuFile is not there");
  EXPECT_FALSE(value<bool>(finding, "works"));
  facts.has_gpu = true;
  EXPECT_EQ(check_direct_reads(facts).front().verdict, Verdict::note);
  facts.has_cufile = true;
  facts.refusal.clear();
  facts.description = "cuFile 1.14, nvidia-fs 2.22";
  facts.rates = {6e9, 5e9};
  finding = check_direct_reads(facts).front();
  EXPECT_EQ(finding.verdict, Verdict::ok);
  EXPECT_THAT(finding.fact, HasSubstr("nvidia-fs 2.22, 6.00 GB/s, through host memory 5.00 GB/s"));
  EXPECT_EQ(value<double>(finding, "direct_rate"), 6e9);
}

TEST(DoctorOfDirectReads, WithoutAGpuThereAreNone) {
  const DirectReadFacts facts = try_direct_reads({}, ".");
  EXPECT_FALSE(facts.has_gpu);
  EXPECT_NE(facts.refusal, "");
}

TEST(DoctorOfCudnn, SaysWhyItIsNotUsable) {
  CudnnFacts facts = detect_cudnn([](std::string& refusal) {
    refusal = "cuDNN 9 is not there";
    return nullptr;
  });
  Finding finding = check_cudnn(facts).front();
  EXPECT_EQ(finding.verdict, Verdict::ok) << "nothing is missing";
  EXPECT_EQ(finding.fact, "not usable: cuDNN 9 is not there");
  EXPECT_FALSE(value<bool>(finding, "works"));
  finding = check_cudnn({"9.19.0", ""}).front();
  EXPECT_EQ(finding.fact, "9.19.0");
  EXPECT_THAT(finding.meaning, HasSubstr("headrace.attention"));
}

TEST(DoctorOfMpi, FoundOrNot) {
  EXPECT_EQ(check_mpi({}).front().fact, "not found");
  EXPECT_EQ(check_mpi({"Open MPI v4.1.4", "", false}).front().verdict, Verdict::note);
  EXPECT_EQ(check_mpi({"Open MPI v4.1.4", "", true}).front().verdict, Verdict::ok);
}

TEST(DoctorPage, HasEveryFindingAndItsLinesFit) {
  const std::vector<Finding> findings = {
      {"one", "a", Verdict::ok, "fine", std::string(60, 'x') + " " + std::string(60, 'y'), "", {}},
      {"one", "b", Verdict::problem, "bad", "means", "do this", {{"n", int64_t{7}}}},
      {"two", "c", Verdict::note, "so", "", "", {{"s", std::string("\xff")}}}};
  const std::string page = render(findings, 80);
  EXPECT_THAT(page, HasSubstr("one\n  [ok]      a: fine\n"));
  EXPECT_THAT(page, HasSubstr("  [problem] b: bad\n"));
  EXPECT_THAT(page, HasSubstr("\ntwo\n  [note]    c: so\n"));
  EXPECT_THAT(page, HasSubstr("1 problem, 1 note\n"));
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80U) << line;
  }
  const auto json = nlohmann::json::parse(to_json(findings));
  EXPECT_EQ(json["findings"].size(), 3U);
  EXPECT_EQ(json["findings"][1]["values"]["n"], 7);
  EXPECT_EQ(json["findings"][1]["verdict"], "problem");
  EXPECT_EQ(json["problems"], 1);
}

TEST(Doctor, ExaminesThisMachine) {
  const test::TemporaryFolder folder;
  const auto findings = examine_machine({folder.path(), folder / "missing"});
  std::set<std::pair<std::string, std::string>> seen;
  for (const Finding& finding : findings) {
    EXPECT_TRUE(seen.emplace(finding.section, finding.name).second) << finding.name;
    EXPECT_FALSE(finding.fact.empty()) << finding.name;
    EXPECT_FALSE(finding.meaning.empty()) << finding.name;
  }
  EXPECT_THAT(find(findings, "optimizer").fact, Not(HasSubstr("Unknown")));
}

}  // namespace
}  // namespace headrace::engine
