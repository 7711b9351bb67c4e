#include "scheduler/check_order.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::scheduler {

ConflictOrder::ConflictOrder(const std::vector<Action>& actions, size_t objects)
    : actions_(actions), copies_(objects), values_(objects), visited_(actions.size()) {}

void ConflictOrder::begin(uint32_t action, std::vector<std::string>& report) {
  action_ = action;
  report_ = &report;
}

bool ConflictOrder::has_path(uint32_t earlier, uint32_t later) {
  const auto& direct = actions_[later].after;
  if (std::find(direct.begin(), direct.end(), earlier) != direct.end()) {
    return true;
  }
  ++stamp_;
  std::vector<uint32_t> open{later};
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    for (const uint32_t before : actions_[at].after) {
      if (before == earlier) {
        return true;
      }
      if (before < earlier || before >= later || visited_[before] == stamp_) {
        continue;
      }
      visited_[before] = stamp_;
      open.push_back(before);
    }
  }
  return false;
}

void ConflictOrder::require(int64_t earlier, const char* reason) {
  if (earlier < 0 || earlier == action_) {
    return;
  }
  if (!has_path(static_cast<uint32_t>(earlier), action_)) {
    report_->push_back(
        fmt::format("action {} may run before action {} ends: {}", action_, earlier, reason));
  }
}

void ConflictOrder::touch_value(ObjectId object) {
  ValueHistory& value = values_[index_of(object)];
  // A user that directly follows another one proves the order for both.
  bool follows_user = false;
  for (const uint32_t before : actions_[action_].after) {
    if (!std::binary_search(value.users.begin(), value.users.end(), before)) {
      continue;
    }
    follows_user = true;
    std::erase(value.last_users, before);
  }
  if (!follows_user) {
    require(value.maker, "it uses a value of the object that the other one makes");
  }
  value.users.push_back(action_);
  value.last_users.push_back(action_);
}

void ConflictOrder::read_copy(ObjectId object, Tier tier) {
  touch_value(object);
  History& copy = copies_[index_of(object)][static_cast<size_t>(tier)];
  require(copy.writer, "it reads a copy that the other one writes");
  copy.readers.push_back(action_);
}

void ConflictOrder::write_copy(ObjectId object, Tier tier) {
  touch_value(object);
  History& copy = copies_[index_of(object)][static_cast<size_t>(tier)];
  require(copy.writer, "both write the same copy");
  for (const uint32_t reader : copy.readers) {
    require(reader, "it overwrites a copy that the other one reads");
  }
  copy.readers.clear();
  copy.writer = action_;
}

void ConflictOrder::change_value(ObjectId object) {
  ValueHistory& value = values_[index_of(object)];
  for (const uint32_t user : value.last_users) {
    require(user, "it makes a new value while the other one handles the old one");
  }
  value = {action_, {}, {}};
}

void ConflictOrder::fill_bytes(Tier tier, int64_t begin, int64_t end) {
  auto& holes = holes_[static_cast<size_t>(tier)];
  std::vector<std::pair<int64_t, Hole>> rests;
  auto hole = holes.lower_bound(begin);
  if (hole != holes.begin() && std::prev(hole)->second.end > begin) {
    --hole;
  }
  while (hole != holes.end() && hole->first < end) {
    const auto [hole_begin, known] = *hole;
    require(known.freed_by, "it fills bytes that the other one frees");
    if (hole_begin < begin) {
      rests.push_back({hole_begin, {begin, known.freed_by}});
    }
    if (known.end > end) {
      rests.push_back({end, {known.end, known.freed_by}});
    }
    hole = holes.erase(hole);
  }
  holes.insert(rests.begin(), rests.end());
}

void ConflictOrder::free_bytes(Tier tier, int64_t begin, int64_t end) {
  holes_[static_cast<size_t>(tier)][begin] = {end, action_};
}

}  // namespace headrace::scheduler
