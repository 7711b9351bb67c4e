#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/run_state.pb.h"
#include "tiers/extent_store.h"

namespace headrace::engine {

/// The run that `folder` belongs to (a run directory, or the output folder of a training), opened
/// by nobody else. InputError as ExtentStore::open. `budget`: for new snapshots; empty: what the
/// disk has.
std::shared_ptr<tiers::ExtentStore> open_run(const std::string& folder,
                                             std::optional<Bytes> budget = std::nullopt);

/// The generations of a run, also of one that is in use.
std::vector<tiers::GenerationInfo> list_generations(const std::string& folder);

/// What the run said of a generation (empty: the committed one). InputError if there is none, or
/// if it is not whole.
proto::RunState run_state_of(tiers::ExtentStore& store, std::optional<uint64_t> generation);

}  // namespace headrace::engine
