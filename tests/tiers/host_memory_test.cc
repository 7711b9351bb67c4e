#include "tiers/host_memory.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>

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
