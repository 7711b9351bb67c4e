#include "engine/step_phases.h"

#include <algorithm>

#include "base/check.h"

namespace headrace::engine {

namespace {

/// Null: the operation is part of neither pass through the network.
double* phase_of(StepKind kind, StepPhases& phases) {
  switch (kind) {
    case StepKind::embed_forward:
    case StepKind::block_forward:
    case StepKind::attention_forward:
    case StepKind::mlp_forward:
    case StepKind::head_evaluate:
      return &phases.forward;
    case StepKind::head_train:
    case StepKind::head_fold:
    case StepKind::head_gradients:
    case StepKind::head_finish:
    case StepKind::block_backward:
    case StepKind::attention_again:
    case StepKind::mlp_backward:
    case StepKind::mlp_finish:
    case StepKind::attention_backward:
    case StepKind::attention_finish:
    case StepKind::embed_backward:
      return &phases.backward;
    default:
      return nullptr;
  }
}

}  // namespace

StepPhases phases_of(const StepTrace& trace, const std::vector<double>& ends, double total) {
  HR_CHECK(ends.size() == trace.operations.size(), "{} ends of {} operations", ends.size(),
           trace.operations.size());
  StepPhases phases;
  double until = 0;
  // The operations of the network are in order: they end in the order of the trace.
  for (size_t i = 0; i < ends.size(); ++i) {
    if (double* const phase = phase_of(trace.operations[i].kind, phases)) {
      *phase += std::max(0.0, ends[i] - until);
      until = std::max(until, ends[i]);
    }
  }
  phases.step = std::max(0.0, total - until);
  return phases;
}

}  // namespace headrace::engine
