#pragma once

#include <string>
#include <vector>

#include "tools/plan.h"

namespace headrace::tools {

/// The table of `headrace plan --sweep`: every combination of the values of one or two keys.
class Sweep {
 public:
  /// "KEY=V1,V2,..." each. UsageError for an unknown key or a bad value.
  explicit Sweep(const std::vector<std::string>& texts);

  static std::vector<std::string> known_keys();
  std::vector<std::string> keys() const;

  /// The rows, the last key varying fastest. Other values of the question stay. InputError where
  /// a sequence length is more than the model has positions for.
  std::vector<SweepRow> run(const engine::PlanQuestion& question) const;

 private:
  struct Axis {
    std::string key;
    std::vector<std::string> values;
  };
  std::vector<Axis> axes_;
};

}  // namespace headrace::tools
