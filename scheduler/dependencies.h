#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "scheduler/trace.h"

namespace headrace::scheduler {

/// Collects what each action has to wait for. Actions come in schedule order: begin(), one call per
/// thing the action touches, finish().
///
/// A copy (object, tier) knows its last writer and the readers since. Bytes of an arena know the
/// drop that freed them last, which in turn waits for all users of the copy that lay there.
/// An operation that changes an object waits for everything that touched any of its copies.
class DependencyTracker {
 public:
  explicit DependencyTracker(size_t objects) : copies_(objects) {}

  void begin(uint32_t action);
  void reads(ObjectId object, Tier tier);
  void overwrites(ObjectId object, Tier tier);
  void changes(ObjectId object);  ///< all copies: a new value of the object comes into being
  void fills(Tier tier, int64_t begin, int64_t end);
  void frees(Tier tier, int64_t begin, int64_t end);
  /// The earlier actions to wait for, ascending.
  std::vector<uint32_t> finish();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct CopyLog {
    uint32_t writer = kNone;
    std::vector<uint32_t> readers;  ///< since the writer
  };
  struct Freed {
    int64_t end = 0;
    uint32_t action = kNone;
  };

  CopyLog& log(ObjectId object, Tier tier) {
    return copies_[index_of(object)][static_cast<size_t>(tier)];
  }
  void overwrite(CopyLog& log);

  std::vector<std::array<CopyLog, kTierCount>> copies_;
  std::array<std::map<int64_t, Freed>, 2> freed_;  ///< by tier, by first byte
  uint32_t action_ = 0;
  std::vector<uint32_t> after_;
};

}  // namespace headrace::scheduler
