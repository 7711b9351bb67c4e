#include "tiers/thread_binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "tiers/topology.h"

namespace headrace::tiers {
namespace {

cpu_set_t affinity() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  EXPECT_EQ(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  return cpus;
}

TEST(ThreadBinding, EveryThreadRunsOnTheNode) {
  const NumaNode node = detect_topology().numa_nodes.front();
  std::thread([&] {  // binding outlives the call; keep it away from the other tests
    set_parallel_threads(2);
    const cpu_set_t before = affinity();
    bind_parallel_threads(node.os_index);
    std::vector<cpu_set_t> after(static_cast<size_t>(parallel_threads()));
    on_every_parallel_thread([&](size_t thread) { after[thread] = affinity(); });
    for (const cpu_set_t& cpus : after) {
      cpu_set_t both;
      CPU_AND(&both, &cpus, &before);
      EXPECT_TRUE(CPU_EQUAL(&both, &cpus)) << "a CPU that the process may not use";
      EXPECT_GE(CPU_COUNT(&cpus), node.cores);
    }
  })
      .join();
}

TEST(ThreadBinding, RefusesANodeThatIsNotThere) {
  EXPECT_THROW(bind_parallel_threads(1023), InputError);
}

}  // namespace
}  // namespace headrace::tiers
