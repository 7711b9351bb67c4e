#pragma once

#include <cstdint>
#include <string_view>

#include "tiers/tiered_store.h"

namespace headrace::tiers {

/// What may be asked of the copy of an object in one tier.
enum class CopyEvent : uint8_t {
  place,
  transfer_in,
  transfer_out,
  lease_read,
  lease_write,
  lease_update,
  drop,
};
inline constexpr int kCopyStateCount = 5;
inline constexpr int kCopyEventCount = 7;

/// Whether a copy in a state takes an event, and its state once the event has had its effect: for
/// leases when they are released, for transfer_in when it starts.
struct Transition {
  bool allowed = false;
  CopyState next = CopyState::absent;
};

/// The table of tiers/tiered_store.h.
Transition transition(CopyState state, CopyEvent event);

std::string_view to_string(CopyState state);
std::string_view to_string(CopyEvent event);

}  // namespace headrace::tiers
