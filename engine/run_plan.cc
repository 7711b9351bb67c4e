#include "engine/run_plan.h"

#include "base/error.h"

namespace headrace::engine {

namespace {

/// Elements of the parameters by ObjectId; 0 for what is none.
std::vector<Elements> parameter_elements(const ModelLayout& layout) {
  std::vector<Elements> elements(layout.objects.size());
  for (const ModuleObjects& module : layout.modules) {
    elements[index_of(module.weights)] = module.spec.count;
  }
  return elements;
}

/// Memory traffic of rounding an element of 16 bits to fp8: two reads, the first for the scale.
constexpr double kRoundingBytesPerElement = 5;

/// Rough cost of the work, until the first step has been measured.
WorkEstimate estimate_work(const model::Network& network, const EngineOptions& options) {
  const WorkRates& rates = options.work;
  const auto seconds = [&](const model::BlockFlops& flops) {
    if (!options.fp8_forward || rates.fp8_flops <= 0) {
      return flops.total() / rates.flops;
    }
    return flops.rest / rates.flops + flops.linear_forward / rates.fp8_flops +
           flops.rounded * kRoundingBytesPerElement / rates.device_bytes;
  };
  WorkEstimate work;
  work.block_forward = seconds(network.block_forward_flops());
  for (const auto level :
       {model::Recompute::none, model::Recompute::mlp, model::Recompute::block}) {
    work.block_backward[level] = seconds(network.block_backward_flops(level));
  }
  work.head = network.head_flops() / rates.flops;
  work.cpu_bytes_per_second = rates.cpu_bytes;
  work.device_bytes_per_second = rates.device_bytes;
  return work;
}

std::unique_ptr<scheduler::Policy> policy_named(const EngineOptions& options,
                                                const ModelLayout& layout) {
  if (options.policy == "optimal") {
    return scheduler::make_optimal_policy();
  }
  if (options.policy == "lru") {
    return scheduler::make_lru_policy();
  }
  if (options.policy == "liveness") {
    return scheduler::make_liveness_policy(options.liveness, parameter_elements(layout));
  }
  throw InputError("headrace.policy: '" + options.policy +
                   "' is unknown; it can be optimal, liveness or lru");
}

}  // namespace

std::unique_ptr<model::Network> make_network(const model::ModelConfig& config,
                                             const EngineOptions& options, device::Device& device) {
  return std::make_unique<model::Network>(config, options.dtype, options.shape, device,
                                          options.vocab_tile, options.block_piece,
                                          options.fp8_forward);
}

MemoryPlan plan_memory(const model::Network& network, const EngineOptions& options) {
  return make_memory_plan(network.config(), options.dtype, options.shape, network_needs(network),
                          estimate_work(network, options), options.memory);
}

std::unique_ptr<scheduler::Policy> make_policy(const EngineOptions& options,
                                               const ModelLayout& layout) {
  return scheduler::with_direct_reads(policy_named(options, layout));
}

bool is_undone_with_nvme(const MemoryPlan& plan, const scheduler::Residency& copy) {
  return plan.layout.objects[index_of(copy.object)].home == Tier::nvme;
}

}  // namespace headrace::engine
