#include "tiers/residency.h"

#include <array>
#include <cstddef>

namespace headrace::tiers {

namespace {

constexpr Transition to(CopyState next) {
  return {true, next};
}
constexpr Transition kError{};
constexpr Transition kAbsent = to(CopyState::absent);
constexpr Transition kEmpty = to(CopyState::empty);
constexpr Transition kFlight = to(CopyState::in_flight);
constexpr Transition kValid = to(CopyState::valid);

using Row = std::array<Transition, kCopyEventCount>;
// clang-format off
constexpr std::array<Row, kCopyStateCount> kTable = {{
    // place    transfer_in  transfer_out  lease_read  lease_write  lease_update  drop
    {{ kEmpty,  kFlight,     kError,       kError,     kError,      kError,       kAbsent }},  // absent
    {{ kError,  kFlight,     kError,       kError,     kValid,      kError,       kAbsent }},  // empty
    {{ kError,  kFlight,     kError,       kError,     kError,      kError,       kError  }},  // in_flight
    {{ kError,  kValid,      kValid,       kValid,     kValid,      kValid,       kAbsent }},  // valid
    {{ kError,  kFlight,     kError,       kError,     kValid,      kError,       kAbsent }},  // stale
}};
// clang-format on

}  // namespace

Transition transition(CopyState state, CopyEvent event) {
  return kTable.at(static_cast<size_t>(state)).at(static_cast<size_t>(event));
}

std::string_view to_string(CopyState state) {
  constexpr std::array<std::string_view, kCopyStateCount> kNames = {"absent", "empty", "in flight",
                                                                    "valid", "stale"};
  return kNames.at(static_cast<size_t>(state));
}

std::string_view to_string(CopyEvent event) {
  constexpr std::array<std::string_view, kCopyEventCount> kNames = {
      "place", "transfer in", "transfer out", "read lease", "write lease", "update lease", "drop"};
  return kNames.at(static_cast<size_t>(event));
}

}  // namespace headrace::tiers
