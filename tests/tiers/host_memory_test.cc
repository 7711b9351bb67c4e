#include "tiers/host_memory.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "tests/tiers/support.h"
#include "tiers/topology.h"

namespace headrace::tiers {
namespace {

using ::testing::HasSubstr;

TEST(HostMemory, IsZeroAlignedAndWritable) {
  const HostMemory memory(Bytes((1 << 20) + 1), false);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0U);
  EXPECT_EQ(memory.bytes().size(), size_t{(1 << 20) + 1});
  EXPECT_TRUE(std::all_of(memory.bytes().begin(), memory.bytes().end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  test::fill_pattern(memory.bytes(), 5);
  EXPECT_TRUE(test::has_pattern(memory.bytes(), 5));
  EXPECT_FALSE(memory.is_pinned());
}

TEST(HostMemory, MayBeEmpty) {
  EXPECT_EQ(HostMemory(Bytes(0), true).bytes().size(), 0U);
}

/// A line of /proc/self/smaps ("AnonHugePages", kB) summed over the mappings within the memory.
int64_t smaps_kib(const HostMemory& memory, const std::string& key) {
  std::ifstream smaps("/proc/self/smaps");
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = begin + static_cast<uintptr_t>(memory.size().count());
  bool inside = false;
  int64_t sum = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t from = 0;
    uintptr_t to = 0;
    char dash = 0;
    std::istringstream text(line);
    if (text >> std::hex >> from >> dash >> to && dash == '-') {
      inside = from < end && begin < to;
    } else if (inside && line.rfind(key + ":", 0) == 0) {
      sum += std::stoll(line.substr(key.size() + 1));
    }
  }
  return sum;
}

int64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) {
      return std::stoll(line.substr(key.size() + 1));
    }
  }
  return 0;
}

TEST(HostMemory, SaysWhichHugePagesItHas) {
  constexpr int64_t kHuge = int64_t{2} << 20;
  const bool has_explicit = meminfo("Hugepagesize") == kHuge / 1024 &&
                            meminfo("HugePages_Free") - meminfo("HugePages_Rsvd") >= 8;
  const HostMemory memory(Bytes(8 * kHuge - 4096), false);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % kHuge, 0U);
  test::fill_pattern(memory.bytes(), 8);
  EXPECT_TRUE(test::has_pattern(memory.bytes(), 8));
  const std::string text = memory.huge_pages();
  if (has_explicit) {
    EXPECT_EQ(text, "explicit");
    EXPECT_EQ(smaps_kib(memory, "Private_Hugetlb"), 8 * kHuge / 1024);
  } else if (text == "transparent") {
    EXPECT_GT(smaps_kib(memory, "AnonHugePages"), 0);
  } else {
    EXPECT_EQ(text, "none");
    EXPECT_EQ(smaps_kib(memory, "AnonHugePages"), 0);
  }
  EXPECT_STREQ(HostMemory(Bytes(4096), false).huge_pages(), "none");
}

TEST(HostMemory, GivesItsHugePagesBack) {
  const int64_t before = meminfo("HugePages_Free");
  if (before == 0) {
    GTEST_SKIP() << "no explicit huge pages are set aside here (vm.nr_hugepages)";
  }
  for (int i = 0; i < 20; ++i) {
    const HostMemory memory(Bytes(int64_t{9} << 20), false);
    memory.bytes()[1 << 20] = std::byte{1};
  }
  EXPECT_EQ(meminfo("HugePages_Free"), before);
}

TEST(HostMemory, PinsWhereItMay) {
  const MachineLimits limits = machine_limits("/");
  const Bytes size(64 << 10);
  if (limits.memlock_limit && *limits.memlock_limit < size) {
    GTEST_SKIP() << "memlock limit of " << format_bytes(*limits.memlock_limit);
  }
  EXPECT_TRUE(HostMemory(size, true).is_pinned());
}

TEST(HostMemory, SaysWhatIsThere) {
  const Bytes total = machine_limits("/").memory_total;
  const std::string text =
      test::message_of<CapacityError>([&] { const HostMemory memory(total * 2, true); });
  EXPECT_THAT(text, HasSubstr(format_bytes(total * 2)));
  EXPECT_THAT(text, HasSubstr("can be had now"));
}

TEST(HostMemory, RefusesANodeThatIsNotThere) {
  EXPECT_THROW(HostMemory(Bytes(4096), false, 4000), InputError);
  EXPECT_THROW(HostMemory(Bytes(4096), false, -1), InputError);
  const Topology topology = detect_topology();
  ASSERT_FALSE(topology.numa_nodes.empty());
  const HostMemory memory(Bytes(1 << 20), false, topology.numa_nodes[0].os_index);
  test::fill_pattern(memory.bytes(), 6);
  EXPECT_TRUE(test::has_pattern(memory.bytes(), 6));
}

}  // namespace
}  // namespace headrace::tiers
