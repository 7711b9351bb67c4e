#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
#include "engine/memory_plan.h"
#include "engine/model_layout.h"
#include "scheduler/schedule.h"

namespace headrace::engine {

enum class ObjectKind : uint8_t { weights, optimizer, gradients, activations };
inline constexpr size_t kObjectKinds = 4;
std::string_view to_string(ObjectKind kind);

/// The kind of every object, by ObjectId.
std::vector<ObjectKind> object_kinds(const ModelLayout& layout);

/// What a schedule needs of a tier's arena.
struct TierUse {
  Bytes arena;                              ///< room for objects; 0: the tier does not exist
  Bytes fixed;                              ///< tokens, workspace and constants beside the arena
  Bytes peak;                               ///< most bytes of objects at once
  std::array<Bytes, kObjectKinds> by_kind;  ///< of the peak, by ObjectKind

  Bytes budget() const { return arena + fixed; }
  Bytes used() const { return peak + fixed; }
};

struct MemoryUse {
  TierUse device;
  TierUse host;
  Bytes on_nvme;  ///< bytes of files, with the committed values beside the new ones
};

/// Replays the schedule's list of actions.
MemoryUse memory_use(const MemoryPlan& plan, const scheduler::Schedule& schedule);

}  // namespace headrace::engine
