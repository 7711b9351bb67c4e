#include "engine/rounds.h"

namespace headrace::engine {

Rounds::Rounds(const MemoryPlan& plan, const EngineOptions& options)
    : plan_(plan),
      rates_(options.memory.rates),
      policy_(make_policy(options, plan.layout)),
      residency_(plan.homes) {
  compile(plan_.load);
}

scheduler::SavedRound Rounds::compile(const StepTrace& trace) {
  const auto input = compile_input(plan_, trace, rates_, residency_);
  scheduler::SavedRound round;
  round.schedule = policy_->compile(input);
  round.predicted_seconds = scheduler::simulate(input, round.schedule).seconds;
  residency_ = round.schedule.final;
  return round;
}

scheduler::SavedRound Rounds::compile_redo() {
  compile(*plan_.speculative);
  std::erase_if(residency_,
                [&](const scheduler::Residency& copy) { return is_undone_with_nvme(plan_, copy); });
  return compile(*plan_.redo);
}

}  // namespace headrace::engine
