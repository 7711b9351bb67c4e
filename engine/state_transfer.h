#pragma once

#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/model_layout.h"
#include "engine/state_reader.h"
#include "engine/step_trace.h"
#include "tiers/extent_store.h"

namespace headrace::engine {

/// A trace that moves training state between the store's values and the tiers.
struct StateTransfer {
  StepTrace steps;
  /// Parallel to the operations: the object whose bytes move as they are; empty: one shard is put
  /// together from numbers.
  std::vector<std::string> raw;
  /// Objects of the stored layout that the present one does not have.
  std::vector<std::string> obsolete;
};

/// Brings the state of `stored` into the present layout. What is stored in the same form and has
/// its home on nvme is left alone; what has its home elsewhere is read; what is stored in other
/// shards or formats is put together anew.
StateTransfer make_restore(const ModelLayout& layout, const proto::StateLayout& stored);
/// `with_moments`: those stored are of the optimizer that goes on; else moments begin at zero.
OperationBody restore_body(const StateTransfer& transfer, const ModelLayout& layout,
                           tiers::ExtentStore& store, StateReader& reader, bool with_moments);

/// Writes what has its home on the device or the host to the store.
StateTransfer make_checkpoint(const ModelLayout& layout);
OperationBody checkpoint_body(const StateTransfer& transfer, tiers::ExtentStore& store);

/// What the objects of a layout hold. `optimizer`: "adam", ...
proto::StateLayout describe(const ModelLayout& layout, const std::string& optimizer);

}  // namespace headrace::engine
