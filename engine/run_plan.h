#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "model/network.h"
#include "scheduler/schedule.h"

namespace headrace::engine {

/// What is decided about a run before anything is allocated: by the engine that runs it, and by
/// commands that only show it.

/// The network of a run on its device, which must outlive it.
std::unique_ptr<model::Network> make_network(const model::ModelConfig& config,
                                             const EngineOptions& options, device::Device& device);

/// The memory plan of the network under these options, with rough durations until a step has been
/// measured. Throws as make_memory_plan().
MemoryPlan plan_memory(const model::Network& network, const EngineOptions& options);

/// The policy that options.policy names; InputError where there is none of that name.
std::unique_ptr<scheduler::Policy> make_policy(const EngineOptions& options,
                                               const ModelLayout& layout);

/// Whether the copy holds a value that goes away when nvme is taken back to the end of the last
/// step.
bool is_undone_with_nvme(const MemoryPlan& plan, const scheduler::Residency& copy);

}  // namespace headrace::engine
