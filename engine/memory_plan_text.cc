#include <fmt/format.h>

#include <algorithm>

#include "engine/memory_plan.h"
#include "engine/recompute_choice.h"

namespace headrace::engine {

namespace {

std::string_view describe(UpdateMode mode) {
  switch (mode) {
    case UpdateMode::after_norm:
      return "after backward";
    case UpdateMode::during_backward:
      return "during backward";
    case UpdateMode::speculative:
      return "during backward, done again where a step is clipped or skipped";
  }
  return "";
}

std::string describe(const RecomputeLevels& levels) {
  const auto count = [&](model::Recompute level) {
    return std::count(levels.begin(), levels.end(), level);
  };
  return fmt::format("blocks computed again: {} whole, {} MLP, {} nothing",
                     count(model::Recompute::block), count(model::Recompute::mlp),
                     count(model::Recompute::none));
}

}  // namespace

std::string describe(const MemoryPlan& plan, const MemoryRequest& request) {
  const StateBytes state = state_bytes(plan.layout);
  const Placement& placement = plan.layout.placement;
  std::string text = "Memory plan\n";
  const auto row = [&](std::string_view what, Bytes size, std::string_view where) {
    text += fmt::format("  {:<22} {:>10}   {}\n", what, format_bytes(size), where);
  };
  row("weights", state.weights, fmt::format("home {}", to_string(placement.weights)));
  row("optimizer state", state.optimizer,
      fmt::format("home {}{}", to_string(placement.optimizer),
                  state.optimizer_on_device > Bytes(0) && placement.optimizer != Tier::device
                      ? ", " + format_bytes(state.optimizer_on_device) + " of it on device"
                      : ""));
  row("gradients", state.gradients, fmt::format("down to {}", to_string(placement.gradients)));
  row("activations", state.activations,
      fmt::format("down to {}", to_string(placement.activations)));
  row("saved for backward", state.saved, describe(plan.layout.recompute));
  if (request.micro_batches > 1) {
    text += fmt::format(
        "  {:<22} {:>10}   {} micro-batches a step\n", "accumulation",
        plan.layout.order == AccumulationOrder::layer_major ? "layer-major" : "micro-batch-major",
        request.micro_batches);
  }
  text += fmt::format("  {:<22} {:>10}   {}\n", "optimizer updates", "",
                      describe(plan.layout.update_mode));
  row("workspace", plan.fixed_bytes(), fmt::format("in {}", to_string(placement.compute)));
  if (plan.has_device()) {
    row("device budget", *request.device_memory,
        fmt::format("minimum {}", format_bytes(plan.minimum_device)));
  }
  row("host budget", request.host_memory,
      fmt::format("minimum {}", format_bytes(plan.minimum_host)));
  return text;
}

}  // namespace headrace::engine
