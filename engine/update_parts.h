#pragma once

#include "engine/executor.h"
#include "engine/master_weights.h"
#include "engine/model_layout.h"
#include "engine/shard_arrays.h"
#include "engine/step_trace.h"

namespace headrace::engine {

/// The arrays of the shard that an operation with the uses of an update (state, gradient, weights)
/// works on; the gradient is left out. clear(data, size) makes the padding behind the module's
/// weights zero, which may be written anew: what is stored depends on nothing but the numbers.
template <class Clear>
UpdateShard begin_update(const ModelLayout& layout, const StepOperation& step, UseBytes uses,
                         const Clear& clear) {
  const ModuleObjects& module = layout.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  if (step.shard == 0) {
    const Bytes used = bytes_for(module.spec.count, layout.dtype);
    clear(uses[2].data() + used.count(), Bytes(static_cast<int64_t>(uses[2].size())) - used);
  }
  UpdateShard arrays = shard_arrays(layout.state, layout.dtype, shard.first, shard.count,
                                    uses[0].data(), uses[2].data());
  arrays.first_element = (module.first + shard.first).count();
  return arrays;
}

/// An update: update(arrays) for each part whose gradient is in one piece. A fresh gradient has
/// nothing in the gaps between parameters; what is there of the state is zero and stays so, and is
/// made zero in weights that are written anew.
template <class Update, class Clear>
void update_parts(const ModelLayout& layout, const StepOperation& step, UseBytes uses,
                  const Update& update, const Clear& clear) {
  const ModuleObjects& module = layout.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  UpdateShard arrays = begin_update(layout, step, uses, clear);
  if (!module.packed_gradient) {
    arrays.gradient = uses[1].data();
    update(arrays);
    return;
  }
  for_parameter_ranges(
      module.spec, shard.first, shard.count,
      [&](const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
        UpdateShard part = slice(arrays, Elements(at), Elements(count));
        const Elements packed = parameter.offset + Elements(first);
        part.gradient = uses[1].data() + bytes_for(packed, layout.dtype).count();
        part.gradient_dtype = layout.dtype;
        update(part);
      },
      [&](int64_t at, int64_t count) {
        if (arrays.weight != nullptr) {
          clear(static_cast<std::byte*>(arrays.weight) +
                    bytes_for(Elements(at), layout.dtype).count(),
                bytes_for(Elements(count), layout.dtype));
        }
      });
}

}  // namespace headrace::engine
