#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/schedule.h"

namespace headrace::scheduler {

/// Part of check_schedule: proves that conflicting actions are ordered by their dependencies.
///
/// Two actions conflict when they touch the same copy, or different values of one object, or the
/// same bytes of an arena, and one of them writes. Actions are shown in list order. Only neighbours
/// in conflict are asked for a path (a reader against the last writer, a writer against the last
/// writer and the readers since): order is transitive, so that covers all pairs. If all conflicts
/// are ordered, every interleaving gives what the list order gives.
class ConflictOrder {
 public:
  ConflictOrder(const std::vector<Action>& actions, size_t objects);

  /// Follow-up calls are about this action; violations are appended to `report`.
  void begin(uint32_t action, std::vector<std::string>& report);
  void read_copy(ObjectId object, Tier tier);
  void write_copy(ObjectId object, Tier tier);
  /// The action makes a new value of the object.
  void change_value(ObjectId object);
  void fill_bytes(Tier tier, int64_t begin, int64_t end);
  void free_bytes(Tier tier, int64_t begin, int64_t end);

 private:
  struct History {
    int64_t writer = -1;
    std::vector<uint32_t> readers;
  };
  struct ValueHistory {
    int64_t maker = -1;
    std::vector<uint32_t> users;       ///< since the maker, ascending
    std::vector<uint32_t> last_users;  ///< those that no other user directly follows
  };
  struct Hole {
    int64_t end = 0;
    uint32_t freed_by = 0;
  };

  void require(int64_t earlier, const char* reason);
  bool has_path(uint32_t earlier, uint32_t later);
  void touch_value(ObjectId object);

  const std::vector<Action>& actions_;
  std::vector<std::array<History, kTierCount>> copies_;
  std::vector<ValueHistory> values_;
  std::array<std::map<int64_t, Hole>, 2> holes_;
  uint32_t action_ = 0;
  std::vector<std::string>* report_ = nullptr;
  std::vector<uint32_t> visited_;  ///< stamp of the last search that saw the action
  uint32_t stamp_ = 0;
};

}  // namespace headrace::scheduler
