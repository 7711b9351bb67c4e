#pragma once

#include "scheduler/arena.h"

namespace headrace::scheduler {

/// An arena in which slots have no addresses: any free bytes can be put together, so there are no
/// holes. It shows what could be kept if every slot found its place. The first bytes of slots are
/// names only.
class BytePool final : public Arena {
 public:
  explicit BytePool(int64_t capacity);

  std::optional<Room> find_room(const WindowQuery& query) const override;
  /// Anywhere: `begin` is not looked at.
  std::optional<Room> room_at(int64_t begin, int64_t size) const override;
  double occupy(int64_t begin, int64_t size, int32_t object) override;
  void release(int64_t begin, double ready) override;
  void pin(int64_t begin) override { ++at(begin).pins; }
  void unpin(int64_t begin) override { --at(begin).pins; }
  void set_score(int64_t begin, const VictimScore& score) override { at(begin).score = score; }

 private:
  struct Slot {
    int64_t begin = 0;
    int64_t size = 0;
    int32_t object = 0;
    int32_t pins = 0;
    VictimScore score;
  };
  struct FreeBytes {
    double ready = 0;
    int64_t size = 0;
  };
  /// A slot that may be taken, at a query's time.
  struct Candidate {
    int32_t object = 0;
    int64_t size = 0;
    double keep = 0;
    double ready = 0;
  };

  Slot& at(int64_t begin);
  std::vector<Candidate> candidates(const WindowQuery& query) const;
  static std::vector<FreeBytes> ready_bytes(const std::vector<Candidate>& slots);

  int64_t next_;                 ///< name of the next slot
  std::vector<Slot> slots_;      ///< by name
  std::vector<FreeBytes> free_;  ///< by time
};

}  // namespace headrace::scheduler
