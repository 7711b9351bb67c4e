#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/input_check.h"
#include "scheduler/trace.h"
#include "tiers/tiered_store.h"

namespace headrace::engine {

/// What is resident of the objects of steps whose operations are announced one by one: the truth is
/// the store's, read when nothing is in flight. Knows which objects have a value, and in which
/// order copies were used. Not thread-safe.
class StepResidency {
 public:
  /// The store's objects are those of the table, by number and name.
  StepResidency(tiers::TieredStore& store, const std::vector<scheduler::ObjectFacts>& objects);

  /// Objects with a copy have a value now.
  void begin_step();
  /// The lives of the objects after what was noted.
  const std::vector<scheduler::Life>& lives() const { return lives_; }
  /// The operation runs; `lives` are those behind it.
  void note(const scheduler::Operation& operation, std::vector<scheduler::Life> lives);
  /// Objects without home have no value any more.
  void end_step();

  /// Drops slots without a current value, and values that are dead, and returns what there is,
  /// least recently used first. Nothing may be in flight.
  std::vector<scheduler::Residency> collect();

 private:
  bool has_value(ObjectId object) const;
  bool keep(ObjectId object, Tier tier);

  tiers::TieredStore& store_;
  const std::vector<scheduler::ObjectFacts>& objects_;
  std::vector<scheduler::Life> lives_;
  std::vector<std::array<int64_t, kTierCount>> last_use_;
  int64_t uses_ = 0;
};

}  // namespace headrace::engine
