#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/units.h"
#include "engine/model_layout.h"

namespace headrace::engine {

/// Sums of squares of the step's final gradients, in blocks of kStatisticsBlock that are added in a
/// fixed order: the norm does not depend on shards, placement or schedule. Not thread-safe; the
/// layout must outlive it.
class GradientNorm {
 public:
  explicit GradientNorm(const ModelLayout& layout);

  /// The block of a module that begins at element `first`, on the OpenMP threads of the caller.
  void note_block(size_t module, Elements first, const float* gradient, Elements count);
  /// What was measured on the device: the content of the layout's device_statistics.
  void note_device(std::span<const std::byte> sums);

  /// Of all blocks: NaN or inf exactly where a gradient is not finite.
  double sum_of_squares() const;

 private:
  const ModelLayout& layout_;
  std::vector<std::vector<double>> sums_;  // [module][block]
};

}  // namespace headrace::engine
