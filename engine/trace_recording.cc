#include "engine/trace_recording.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/rounds.h"
#include "model/checkpoint_file.h"

namespace headrace::engine {

namespace {

/// Names and traces of the steps; the trace is null where the plan has none.
struct Chosen {
  const char* name = "";
  const StepTrace* trace = nullptr;
};

Chosen choose(const MemoryPlan& plan, RecordedStep step) {
  const auto pointer = [](const std::optional<StepTrace>& trace) {
    return trace ? &*trace : nullptr;
  };
  switch (step) {
    case RecordedStep::steady:
      return choose(plan, plan.speculative ? RecordedStep::speculative : RecordedStep::training);
    case RecordedStep::training:
      return {"training", &plan.training};
    case RecordedStep::speculative:
      return {"speculative", pointer(plan.speculative)};
    case RecordedStep::redo:
      return {"redo", pointer(plan.redo)};
    case RecordedStep::evaluation:
      return {"evaluation", &plan.evaluation};
  }
  throw InternalError("internal error: unknown step");
}

}  // namespace

scheduler::SavedTrace record_trace(const model::ModelConfig& config, const EngineOptions& options,
                                   RecordedStep step, int rounds) {
  const auto device = device::make_cpu_device();
  const MemoryPlan plan = plan_memory(*make_network(config, options, *device), options);
  const Chosen chosen = choose(plan, step);
  if (chosen.trace == nullptr) {
    throw InputError(fmt::format(
        "this run has no {} step: its updates never go ahead of a norm that they depend on; that "
        "takes headrace.optimizer_overlap, an optimizer on nvme, and a step that is not slower",
        chosen.name));
  }
  Rounds compiled(plan, options);
  scheduler::SavedTrace saved;
  for (int number = 1; number <= std::max(rounds, 1); ++number) {
    scheduler::SavedRound round =
        step == RecordedStep::redo ? compiled.compile_redo() : compiled.compile(*chosen.trace);
    round.number = number;
    if (saved.rounds.size() == 2) {
      saved.rounds.pop_back();
    }
    saved.rounds.push_back(std::move(round));
  }
  saved.step = chosen.name;
  saved.policy = compiled.policy();
  saved.trace = chosen.trace->trace;
  saved.objects = plan.layout.objects;
  const auto input = compile_input(plan, *chosen.trace, options.memory.rates, {});
  saved.budgets = input.budgets;
  saved.rates = input.rates;
  return saved;
}

void save_trace(const scheduler::SavedTrace& trace, const std::string& path) {
  model::replace_file(path, scheduler::encode_trace(trace));
}

scheduler::SavedTrace load_trace(const std::string& path) {
  return scheduler::decode_trace(model::read_text_file(path, scheduler::kLongestTraceFile), path);
}

}  // namespace headrace::engine
