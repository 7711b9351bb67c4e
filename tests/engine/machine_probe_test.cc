#include "engine/probe/machine_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/probe/machine_loads.h"
#include "engine/probe/memory_traffic.h"

namespace headrace::engine {
namespace {

using ::testing::HasSubstr;

TEST(MachineProbe, MeasuresEverything) {
  MachineProbeOptions options;
  options.seconds = 0.5;
  options.memory = kMiB * 32;
  double last = -1;
  options.progress = [&](double done, const std::string&) {
    EXPECT_GE(done, last);
    last = done;
  };
  const int threads = parallel_threads();
  const proto::MachineProfile machine = probe_machine(options);
  EXPECT_EQ(last, 1.0);
  EXPECT_EQ(parallel_threads(), threads);
  std::string host(256, '\0');
  ASSERT_EQ(::gethostname(host.data(), host.size()), 0);
  EXPECT_EQ(machine.hostname(), host.c_str());
  EXPECT_GT(machine.memory_bytes(), 0);
  ASSERT_GE(machine.memory_size(), 1);
  EXPECT_EQ(machine.memory(0).threads(), 1);
  EXPECT_EQ(machine.memory().rbegin()->threads(), threads);
  ASSERT_EQ(machine.optimizer_size(), 4);
  ASSERT_EQ(machine.matmul_size(), 2);
  // Far apart from what any machine does, but in the right units.
  for (const proto::MemoryRate& rate : machine.memory()) {
    EXPECT_GT(rate.bytes_per_second(), 1e7);
    EXPECT_LT(rate.bytes_per_second(), 1e13);
  }
  for (const proto::OptimizerRate& rate : machine.optimizer()) {
    EXPECT_GT(rate.elements_per_second(), 1e6);
    EXPECT_LT(rate.elements_per_second(), 1e12);
  }
  for (const proto::MatmulRate& rate : machine.matmul()) {
    EXPECT_GT(rate.flops_per_second(), 1e8);
    EXPECT_LT(rate.flops_per_second(), 1e16);
  }
  EXPECT_GT(machine.host_to_device_rate(), 1e7);
  EXPECT_GT(machine.device_to_host_rate(), 1e7);
  EXPECT_THAT(render(machine), HasSubstr(machine.hostname()));
  EXPECT_THAT(render(machine), HasSubstr("bf16, split master, bf16 moments"));
  EXPECT_THAT(render(machine), HasSubstr("bf16, split master, 8-bit moments"));
}

TEST(MachineProbe, CancelStops) {
  const std::atomic<bool> cancelled{true};
  MachineProbeOptions options;
  options.memory = kMiB * 8;
  options.cancelled = &cancelled;
  EXPECT_THROW(probe_machine(options), InterruptedError);
}

TEST(MachineProbe, TooLittleMemoryIsSaid) {
  aio::HugeMemory memory(kMiB);  // one huge page, which is two blocks of elements at most
  EXPECT_GT(memory_rate(memory, 1, {.seconds = 0}), 0.0);
  MachineProbeOptions options;
  options.memory = Bytes(0);
  EXPECT_THROW(probe_machine(options), CapacityError);
}

TEST(MachineLoads, ThePassTouchesEveryElement) {
  constexpr int64_t kCount = 640;
  std::vector<float> master(kCount, 1);
  std::vector<float> moment1(kCount, 2);
  std::vector<float> moment2(kCount, 3);
  std::vector<float> gradient(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    gradient[static_cast<size_t>(i)] = static_cast<float>(i);
  }
  pass_over(master.data(), moment1.data(), moment2.data(), gradient.data(), kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(master[at], static_cast<float>(i + 1));
    EXPECT_EQ(moment1[at], static_cast<float>(i + 2));
    EXPECT_EQ(moment2[at], static_cast<float>(i + 3));
  }
}

TEST(MachineLoads, TheMedianIsOfTheCallsAfterTheFirst) {
  int calls = 0;
  const double seconds = median_seconds({.seconds = 0}, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(calls == 0 ? 200 : 20));
    ++calls;
  });
  EXPECT_EQ(calls, 4);
  EXPECT_GE(seconds, 0.02);
  EXPECT_LT(seconds, 0.2);
}

}  // namespace
}  // namespace headrace::engine
