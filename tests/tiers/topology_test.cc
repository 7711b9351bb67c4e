#include "tiers/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>

#include "base/error.h"
#include "tests/support/fake_system.h"

namespace headrace::tiers {
namespace {

constexpr int64_t kGi = int64_t{1} << 30;

TEST(Topology, CountsWhatThisProcessMayUse) {
  const Topology topology = detect_topology();
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  EXPECT_EQ(topology.hardware_threads, CPU_COUNT(&allowed));
  EXPECT_GE(topology.cores, 1);
  EXPECT_LE(topology.cores, topology.hardware_threads);
  ASSERT_FALSE(topology.numa_nodes.empty());
}

TEST(MachineLimits, OfThisMachine) {
  const MachineLimits limits = machine_limits(".");
  EXPECT_GT(limits.memory_usable(), Bytes(0));
  EXPECT_LE(limits.memory_usable(), limits.memory_available);
  EXPECT_LE(limits.memory_available, limits.memory_total);
  EXPECT_GT(limits.disk_free, Bytes(0));
  // A folder yet to be made counts as the parent that exists.
  EXPECT_GT(machine_limits("./no/such/folder").disk_free, Bytes(0));
  EXPECT_GE(disk_capacity({"."}), limits.disk_free);
  EXPECT_EQ(disk_capacity({".", "."}), disk_capacity({"."})) << "one filesystem counts once";
  EXPECT_EQ(disk_capacity({".", "./no/such/folder"}), Bytes(0));
}

class FakeSystem : public ::testing::Test, protected headrace::test::FakeSystem {
 protected:
  FakeSystem() {
    put("/proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n");
  }
  MachineLimits limits() { return machine_limits("/", root()); }
};

TEST_F(FakeSystem, TellsTheNodeOfAPciDevice) {
  put("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  put("/sys/bus/pci/devices/0000:3c:00.0/numa_node", "-1\n");
  EXPECT_EQ(pci_numa_node("0000:3B:00.0", root()), 1) << "CUDA writes capitals";
  EXPECT_EQ(pci_numa_node("0000:3c:00.0", root()), std::nullopt) << "the machine has one node";
  EXPECT_EQ(pci_numa_node("0000:3d:00.0", root()), std::nullopt) << "is not there";
}

TEST_F(FakeSystem, NoGroupMeansNoLimit) {
  EXPECT_EQ(limits().memory_total, Bytes(16 * kGi));
  EXPECT_EQ(limits().memory_available, Bytes(8 * kGi));
  EXPECT_FALSE(limits().cgroup_limit.has_value());
  EXPECT_EQ(limits().memory_usable(), Bytes(8 * kGi));
}

TEST_F(FakeSystem, ReadsVersion2AndTheGroupsAbove) {
  put("/proc/self/cgroup", "0::/slice/job\n");
  put("/sys/fs/cgroup/slice/job/memory.max", "max\n");
  put("/sys/fs/cgroup/slice/job/memory.current", "5\n");
  put("/sys/fs/cgroup/slice/memory.max", "4294967296\n");
  put("/sys/fs/cgroup/slice/memory.current", "3221225472\n");
  put("/sys/fs/cgroup/slice/memory.stat", "anon 7\ninactive_file 2147483648\nactive_file 1\n");
  const MachineLimits found = limits();
  EXPECT_EQ(found.cgroup_limit, Bytes(4 * kGi));
  EXPECT_EQ(found.cgroup_usage, Bytes(1 * kGi));
  EXPECT_EQ(found.memory_usable(), Bytes(3 * kGi));
}

TEST_F(FakeSystem, ReadsVersion1) {
  put("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n");
  put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "2147483648\n");
  put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1073741824\n");
  put("/sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 1\ntotal_inactive_file 0\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limits().cgroup_limit, Bytes(2 * kGi));
  EXPECT_EQ(limits().memory_usable(), Bytes(1 * kGi));
}

TEST_F(FakeSystem, InAContainerTheMountIsTheGroup) {
  put("/proc/self/cgroup", "0::/docker/0123\n");
  put("/sys/fs/cgroup/memory.max", "1073741824\n");
  put("/sys/fs/cgroup/memory.current", "2147483648\n");
  EXPECT_EQ(limits().cgroup_limit, Bytes(kGi));
  EXPECT_EQ(limits().memory_usable(), Bytes(0)) << "more used than allowed";
}

TEST_F(FakeSystem, TheCapabilityLiftsTheMemlockLimit) {
  put("/proc/self/limits",
      "Max locked memory         8388608              unlimited            bytes     \n");
  EXPECT_EQ(limits().memlock_limit, Bytes(8388608));
  put("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  EXPECT_FALSE(limits().memlock_limit.has_value());
}

TEST_F(FakeSystem, FailsWithoutMeminfo) {
  std::filesystem::remove(root() + "/proc/meminfo");
  EXPECT_THROW(limits(), IoError);
}

}  // namespace
}  // namespace headrace::tiers
