#include "scheduler/dependencies.h"

#include <algorithm>

namespace headrace::scheduler {

void DependencyTracker::begin(uint32_t action) {
  action_ = action;
  after_.clear();
}

void DependencyTracker::reads(ObjectId object, Tier tier) {
  CopyLog& copy = log(object, tier);
  if (copy.writer != kNone) {
    after_.push_back(copy.writer);
  }
  copy.readers.push_back(action_);
}

void DependencyTracker::overwrite(CopyLog& copy) {
  if (copy.writer != kNone && copy.writer != action_) {
    after_.push_back(copy.writer);
  }
  after_.insert(after_.end(), copy.readers.begin(), copy.readers.end());
  copy.readers.clear();
  copy.writer = action_;
}

void DependencyTracker::overwrites(ObjectId object, Tier tier) {
  overwrite(log(object, tier));
}

void DependencyTracker::changes(ObjectId object) {
  for (CopyLog& copy : copies_[index_of(object)]) {
    overwrite(copy);
  }
}

void DependencyTracker::fills(Tier tier, int64_t begin, int64_t end) {
  auto& freed = freed_[static_cast<size_t>(tier)];
  auto range = freed.upper_bound(begin);
  if (range != freed.begin() && std::prev(range)->second.end > begin) {
    --range;
  }
  while (range != freed.end() && range->first < end) {
    const auto [first, old] = *range;
    after_.push_back(old.action);
    range = freed.erase(range);
    if (first < begin) {
      freed[first] = {begin, old.action};
    }
    if (old.end > end) {
      freed[end] = old;
    }
  }
}

void DependencyTracker::frees(Tier tier, int64_t begin, int64_t end) {
  freed_[static_cast<size_t>(tier)][begin] = {end, action_};
}

std::vector<uint32_t> DependencyTracker::finish() {
  std::sort(after_.begin(), after_.end());
  after_.erase(std::unique(after_.begin(), after_.end()), after_.end());
  return after_;
}

}  // namespace headrace::scheduler
