#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headrace::engine {

/// One point of a curve.
struct Scalar {
  std::string tag;      ///< "Train/Samples/lr"
  double value = 0;     ///< may be NaN or infinite
  int64_t samples = 0;  ///< where on the axis: sequences that the run has seen
};

/// Whether a point that was written before a run was resumed is of a step that the run still has.
using KeepScalar = std::function<bool(const std::string& tag, int64_t samples)>;

/// Where curves go. Not thread-safe. IoError when a file cannot be written.
class ScalarSink {
 public:
  virtual ~ScalarSink() = default;
  /// The points are in the file, as far as this process is concerned, when it returns.
  virtual void write(const std::vector<Scalar>& scalars) = 0;
};

}  // namespace headrace::engine
