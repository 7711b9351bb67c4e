#pragma once

#include <string>
#include <vector>

#include "engine/model_layout.h"
#include "engine/step_trace.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// One operation of the compute lane.
struct ComputeOperation {
  std::string name;
  double seconds = 0;
  std::vector<scheduler::Use> uses;
  StepOperation step;
};

/// What the makers of such operations share: uses in the compute tier. Layout and estimate must
/// outlive it.
class ComputeOperations {
 protected:
  ComputeOperations(const ModelLayout& layout, const WorkEstimate& work)
      : layout_(layout), work_(work) {}

  scheduler::Use use(ObjectId object, scheduler::Access access, bool discard = false) const {
    return {object, layout_.placement.compute, access, discard};
  }
  scheduler::Use weights(size_t module) const {
    return use(layout_.modules[module].weights, scheduler::Access::read);
  }
  scheduler::Use new_gradient(size_t module, int64_t micro_batch) const {
    return use(layout_.modules[module].gradient_of(micro_batch), scheduler::Access::write);
  }

  const ModelLayout& layout_;
  const WorkEstimate& work_;
};

}  // namespace headrace::engine
