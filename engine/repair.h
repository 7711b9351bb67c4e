#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tiers/extent_store.h"

namespace headrace::engine {

/// Repairs what can be repaired of damaged extents: from where the same bytes are in the run, and
/// 16-bit weights from the fp32 master where the state holds a whole one. In the order of `damage`.
/// Errors: InputError for a run that does not say how its state is laid out.
std::vector<tiers::Repair> repair_damage(tiers::ExtentStore& store,
                                         const std::vector<tiers::Damage>& damage);

/// Whether a generation has any of these damaged extents.
bool is_damaged(uint64_t generation, const std::vector<tiers::Damage>& damage);

/// The newest snapshot that has none of these damaged extents; empty: there is none.
std::optional<uint64_t> newest_whole_snapshot(const tiers::ExtentStore& store,
                                              const std::vector<tiers::Damage>& damage);

}  // namespace headrace::engine
