#include "engine/memory_refusal.h"

#include <fmt/format.h>

#include "base/error.h"

namespace headrace::engine {

namespace {

std::string remedies(const MemoryRequest& request, Tier tier) {
  std::string text = fmt::format("give more with --{}-memory", to_string(tier));
  text += ", or lower the sequence length or train_micro_batch_size_per_gpu";
  if (tier == Tier::device && request.offload_optimizer && request.offload_ratio.value_or(1) < 1) {
    text += ", or raise zero_optimization.offload_optimizer.ratio";
  }
  if (request.recompute && request.recompute != model::Recompute::block) {
    text += ", or set headrace.recompute to block";
  }
  if (request.offload_param != Tier::nvme) {
    text += ", or set zero_optimization.offload_param.device";
  }
  if (request.offload_optimizer != Tier::nvme) {
    text += ", or set zero_optimization.offload_optimizer.device";
  }
  if (!request.nvme_activations) {
    text += tier == Tier::device && !request.host_activations
                ? ", or set activation_checkpointing.cpu_checkpointing"
                : ", or set headrace.activation_nvme";
  }
  return text;
}

}  // namespace

void require_budget(Bytes given, Bytes minimum, Tier tier, const MemoryRequest& request) {
  if (given >= minimum) {
    return;
  }
  throw CapacityError(
      fmt::format("this run does not fit: the {} tier needs at least {} ({} bytes), but its budget "
                  "is {} ({} bytes); {}",
                  to_string(tier), format_bytes(minimum), minimum.count(), format_bytes(given),
                  given.count(), remedies(request, tier)));
}

void require_disk(const MemoryPlan& plan, const MemoryRequest& request) {
  if (request.nvme_budget >= plan.minimum_nvme) {
    return;
  }
  throw CapacityError(fmt::format(
      "this run does not fit: it needs at least {} on nvme (the committed state and the next "
      "step's, side by side), but "
      "the budget is {} in {}; raise --nvme-budget, free disk space, or offload less to nvme",
      format_bytes(plan.minimum_nvme), format_bytes(request.nvme_budget), request.nvme_path));
}

}  // namespace headrace::engine
