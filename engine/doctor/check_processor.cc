#include <fmt/format.h>

#include <algorithm>

#include "device/cpu/tile_product.h"
#include "engine/doctor/doctor.h"
#include "engine/optimizer/kernel_targets.h"

namespace headrace::engine {

namespace {

Finding processor(const tiers::Topology& topology, const std::string& root) {
  const std::string name = tiers::processor_name(root);
  Finding finding{"processor", "processor"};
  finding.fact =
      fmt::format("{}, {} cores, {} hardware threads for this process",
                  name.empty() ? "unknown model" : name, topology.cores, topology.hardware_threads);
  finding.meaning = "Compute on the CPU and the optimizer use all of these cores.";
  finding.values = {{"model", name},
                    {"cores", int64_t{topology.cores}},
                    {"hardware_threads", int64_t{topology.hardware_threads}}};
  return finding;
}

Finding quota(const tiers::Topology& topology, const std::string& root) {
  const auto limit = tiers::cpu_quota(root);
  Finding finding{"processor", "CPU quota"};
  if (!limit) {
    finding.fact = "none";
    finding.meaning = "No control group holds the process back.";
    return finding;
  }
  finding.fact = fmt::format("{:.3g} processors' worth of time", *limit);
  finding.values = {{"processors", *limit}};
  if (*limit >= topology.hardware_threads) {
    finding.meaning = "It is no less than what the process may use.";
    return finding;
  }
  finding.verdict = Verdict::note;
  finding.meaning = fmt::format(
      "{} threads share it and are all stopped when it is used up, which also stops transfers.",
      topology.hardware_threads);
  finding.change = fmt::format(
      "Set OMP_NUM_THREADS={}, or raise the container's CPU limit (docker run --cpus, Kubernetes "
      "limits.cpu).",
      std::max(1, static_cast<int>(*limit)));
  return finding;
}

Finding optimizer(const InstructionSets& sets) {
  Finding finding{"processor", "optimizer"};
  finding.fact = "instruction set " + sets.optimizer;
  finding.values = {{"instruction_set", sets.optimizer}};
  if (sets.has_avx2) {
    finding.meaning = "The optimizer runs at the rate of the memory.";
    return finding;
  }
  finding.verdict = Verdict::problem;
  finding.meaning = "Without AVX2 or better the CPU optimizer is several times slower.";
  finding.change =
      "Use another processor, or let the virtual machine show its instruction sets "
      "(for QEMU: -cpu host).";
  return finding;
}

Finding matrix_products(const InstructionSets& sets) {
  Finding finding{"processor", "matrix products"};
  finding.fact = sets.bf16_products ? "bf16 with instructions of its own" : "bf16 by way of fp32";
  finding.values = {{"bf16_instructions", sets.bf16_products}};
  finding.meaning = sets.bf16_products
                        ? "On the CPU, bf16 training computes faster than fp32."
                        : "On the CPU, bf16 training halves memory and traffic but computes at "
                          "the speed of fp32. Nothing to do when a GPU computes.";
  return finding;
}

Finding nodes(const tiers::Topology& topology) {
  Finding finding{"processor", "NUMA nodes"};
  finding.values = {{"nodes", static_cast<int64_t>(topology.numa_nodes.size())}};
  if (topology.numa_nodes.size() <= 1) {
    finding.fact = "1";
    finding.meaning = "All memory is equally near.";
    return finding;
  }
  for (const tiers::NumaNode& node : topology.numa_nodes) {
    finding.fact += fmt::format("{}{}: {} cores, {}", finding.fact.empty() ? "" : "; ",
                                node.os_index, node.cores, format_bytes(node.memory));
  }
  finding.verdict = Verdict::note;
  finding.meaning =
      "Memory and optimizer threads are spread over all nodes. A run that fits into "
      "one node is faster on the node of its drive and GPU.";
  finding.change = "Set headrace.numa_node to that node.";
  return finding;
}

}  // namespace

InstructionSets detect_instruction_sets() {
  InstructionSets sets;
  // Of Highway's bits the lowest is the best; what the kernels are compiled for is in HWY_TARGETS.
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  const int64_t best = usable & -usable;
  sets.optimizer = hwy::TargetName(best);
#if HWY_ARCH_X86
  sets.has_avx2 = best <= HWY_AVX2;
#else
  sets.has_avx2 = best != HWY_SCALAR && best != HWY_EMU128;
#endif
  sets.bf16_products = device::cpu::prefers_bf16_instructions();
  return sets;
}

std::vector<Finding> check_processor(const tiers::Topology& topology, const InstructionSets& sets,
                                     const std::string& root) {
  return {processor(topology, root), quota(topology, root), optimizer(sets), matrix_products(sets),
          nodes(topology)};
}

}  // namespace headrace::engine
