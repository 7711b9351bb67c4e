#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/units.h"
#include "engine/optimizer/update.h"
#include "engine/state_format.h"
#include "model/model_config.h"

namespace headrace::engine {

/// Calls body(parameter, first in what the module has of the parameter, offset in range, count) for
/// the parts of the packed range [first, first + count) that belong to parameters, and gap(offset
/// in range, count) for alignment gaps.
template <class Body, class Gap>
void for_parameter_ranges(const model::ModuleSpec& spec, Elements first, Elements count,
                          const Body& body, const Gap& gap) {
  const int64_t end = (first + count).count();
  int64_t at = first.count();
  for (const model::ParameterSpec& parameter : spec.parameters) {
    const int64_t begin = std::max(at, parameter.offset.count());
    const int64_t stop = std::min(end, (parameter.offset + parameter.count).count());
    if (begin >= stop) {
      continue;
    }
    if (begin > at) {
      gap(at - first.count(), begin - at);
    }
    body(parameter, begin - parameter.offset.count(), begin - first.count(), stop - begin);
    at = stop;
  }
  if (at < end) {
    gap(at - first.count(), end - at);
  }
}

/// The arrays of elements [first, first + count) of a module whose optimizer state object is at
/// `state` and whose whole packed weights are at `weights`; the gradient is left out.
UpdateShard shard_arrays(const StateFormat& format, DType dtype, Elements first, Elements count,
                         std::byte* state, std::byte* weights);

}  // namespace headrace::engine
