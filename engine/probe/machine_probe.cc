#include "engine/probe/machine_probe.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <string_view>
#include <vector>

#include "base/median.h"
#include "base/parallel.h"
#include "base/process.h"
#include "engine/probe/machine_loads.h"
#include "tiers/topology.h"

namespace headrace::engine {

namespace {

struct State {
  StateKind kind;
  std::string_view name;
};
constexpr auto kStates = std::to_array<State>({
    {StateKind::fp32, "fp32"},
    {StateKind::split, "bf16, split master, fp32 moments"},
    {StateKind::split_bf16_moments, "bf16, split master, bf16 moments"},
    {StateKind::split_8bit_moments, "bf16, split master, 8-bit moments"},
});
constexpr int kDeviceLoads = 4;
constexpr int kRounds = 3;  ///< of memory and optimizer, whose ratio counts, by turns

/// 1, 2, 4, ... and all.
std::vector<int> thread_counts(int all) {
  std::vector<int> counts;
  for (int64_t count = 1; count < all; count *= 2) {
    counts.push_back(static_cast<int>(count));
  }
  counts.push_back(all);
  return counts;
}

void set_facts(proto::MachineProfile& machine) {
  const std::string host = host_name();
  machine.set_hostname(host.empty() ? "unknown" : host);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  machine.set_measured_unix_seconds(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  machine.set_processor(tiers::processor_name());
  const tiers::Topology topology = tiers::detect_topology();
  machine.set_cores(topology.cores);
  machine.set_hardware_threads(topology.hardware_threads);
  machine.set_numa_nodes(static_cast<int>(topology.numa_nodes.size()));
  machine.set_memory_bytes(tiers::machine_limits(".").memory_total.count());
}

/// Rates of loads that ran by turns.
class Rounds {
 public:
  explicit Rounds(size_t loads) : rates_(loads) {}
  void add(size_t load, double rate) { rates_[load].push_back(rate); }
  double median(size_t load) const { return headrace::median(rates_[load]); }

 private:
  std::vector<std::vector<double>> rates_;
};

void set_device_rates(const DeviceRates& rates, proto::MachineProfile& machine) {
  const auto add_matmul = [&](const char* dtype, double rate) {
    proto::MatmulRate& matmul = *machine.add_matmul();
    matmul.set_dtype(dtype);
    matmul.set_flops_per_second(rate);
  };
  add_matmul("fp32", rates.matmul_f32);
  add_matmul("bf16", rates.matmul_bf16);
  machine.set_host_to_device_rate(rates.to_device);
  machine.set_device_to_host_rate(rates.to_host);
  machine.set_device("cpu");
}

}  // namespace

proto::MachineProfile probe_machine(const MachineProbeOptions& options) {
  proto::MachineProfile machine;
  set_facts(machine);
  const std::vector<int> counts = thread_counts(parallel_threads());
  const size_t loads = counts.size() + kStates.size();
  const auto steps = static_cast<double>(loads + kDeviceLoads) * kRounds;
  const LoadTime time{.seconds = options.seconds / steps, .cancelled = options.cancelled};
  double done = 0;
  const auto tell = [&](const std::string& doing) {
    if (options.progress) {
      options.progress(done / steps, doing);
    }
    ++done;
  };
  Rounds rounds(loads);
  {
    aio::HugeMemory memory(options.memory);
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < counts.size(); ++i) {
        tell(fmt::format("memory, {} threads", counts[i]));
        rounds.add(i, memory_rate(memory, counts[i], time));
      }
      for (size_t i = 0; i < kStates.size(); ++i) {
        tell(fmt::format("optimizer, {}", kStates[i].name));
        rounds.add(counts.size() + i, optimizer_rate(memory, kStates[i].kind, time));
      }
    }
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    proto::MemoryRate& rate = *machine.add_memory();
    rate.set_threads(counts[i]);
    rate.set_bytes_per_second(rounds.median(i));
  }
  for (size_t i = 0; i < kStates.size(); ++i) {
    proto::OptimizerRate& rate = *machine.add_optimizer();
    rate.set_state(std::string(kStates[i].name));
    rate.set_elements_per_second(rounds.median(counts.size() + i));
    rate.set_bytes_per_element(traffic_bytes(kStates[i].kind));
  }
  tell("matrix products and copies");
  set_device_rates(device_rates({.seconds = time.seconds * kDeviceLoads * kRounds,
                                 .cancelled = options.cancelled}),
                   machine);
  if (options.progress) {
    options.progress(1, "done");
  }
  return machine;
}

std::string render(const proto::MachineProfile& machine) {
  constexpr double kGiga = 1e9;
  std::string text = fmt::format("{:<16} {}, {} cores, {} threads, {} NUMA nodes, {} of memory\n",
                                 machine.hostname(), machine.processor(), machine.cores(),
                                 machine.hardware_threads(), machine.numa_nodes(),
                                 format_bytes(Bytes(machine.memory_bytes())));
  double highest = 0;
  for (const proto::MemoryRate& rate : machine.memory()) {
    highest = rate.bytes_per_second();
    text += fmt::format("{:<16} {:>7.1f} GB/s read and written, {} threads\n", "memory",
                        rate.bytes_per_second() / kGiga, rate.threads());
  }
  for (const proto::OptimizerRate& rate : machine.optimizer()) {
    const double bytes = rate.elements_per_second() * rate.bytes_per_element();
    text += fmt::format("{:<16} {:>7.2f} G elements/s, {:.1f} GB/s ({:.0f} % of memory): {}\n",
                        "CPU optimizer", rate.elements_per_second() / kGiga, bytes / kGiga,
                        100 * bytes / highest, rate.state());
  }
  for (const proto::MatmulRate& rate : machine.matmul()) {
    text += fmt::format("{:<16} {:>7.0f} GFLOP/s, {}\n", "matrix products",
                        rate.flops_per_second() / kGiga, rate.dtype());
  }
  text += fmt::format("{:<16} {:>7.1f} GB/s to the device ({}), {:.1f} GB/s back\n", "copies",
                      machine.host_to_device_rate() / kGiga, machine.device(),
                      machine.device_to_host_rate() / kGiga);
  return text;
}

}  // namespace headrace::engine
