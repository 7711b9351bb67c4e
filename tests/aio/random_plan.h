#pragma once

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "tests/aio/test_disk.h"

namespace headrace::aio {

/// Writes and reads at random places of several files, compared with arrays in memory.
class RandomPlan {
 public:
  RandomPlan(IoEngine& engine, const TestFolder& folder, int files, int64_t unit, uint64_t seed)
      : engine_(engine), unit_(unit), random_(seed, 0), source_(kFileSize), target_(kFileSize) {
    for (int i = 0; i < files; ++i) {
      ids_.push_back(engine.open(folder.file(fmt::format("plan{}-{}", seed, i)), true));
      engine.allocate(ids_.back(), Bytes(kFileSize));
      expected_.emplace_back(kFileSize, std::byte{0});
    }
  }

  /// Writes that do not overlap, all in flight at once; then reads of other places, the same way.
  void round() {
    fill_random(source_.span(), random_.next_u64());
    const std::vector<IoRequest> writes = draw(IoOperation::write, source_);
    for (const IoRequest& write : writes) {
      std::memcpy(expected(write), write.data, static_cast<size_t>(write.length.count()));
    }
    carry_out(writes);
    const std::vector<IoRequest> reads = draw(IoOperation::read, target_);
    carry_out(reads);
    for (const IoRequest& read : reads) {
      const auto length = static_cast<size_t>(read.length.count());
      ASSERT_EQ(std::memcmp(read.data, expected(read), length), 0)
          << "file " << static_cast<uint32_t>(read.file) << " offset " << read.offset << " length "
          << length;
      ++compared_;
    }
  }

  int64_t bytes() const { return bytes_; }
  int compared() const { return compared_; }

 private:
  static constexpr int64_t kPlanBlock = 4096;
  static constexpr int64_t kFileSize = 1 << 20;

  /// Requests one after the other over the memory, each in the same place of a random file.
  std::vector<IoRequest> draw(IoOperation operation, const TestMemory& memory) {
    std::vector<IoRequest> requests;
    for (int64_t at = draw_size(0, 3); at < kFileSize; at += draw_size(0, 3)) {
      const int64_t length = draw_size(unit_, random_.below(4) == 0 ? 100 : 3);
      if (at + length > kFileSize) {
        break;
      }
      requests.push_back(IoRequest{.operation = operation,
                                   .io_class = static_cast<IoClass>(random_.below(3)),
                                   .file = ids_[random_.below(ids_.size())],
                                   .offset = at,
                                   .data = memory.data() + at,
                                   .length = Bytes(length)});
      at += length;
    }
    return requests;
  }
  /// A multiple of the unit, from `least` to less than so many blocks more.
  int64_t draw_size(int64_t least, int64_t blocks) {
    const auto bound = static_cast<uint64_t>(blocks * kPlanBlock);
    return least + static_cast<int64_t>(random_.below(bound)) / unit_ * unit_;
  }
  void carry_out(const std::vector<IoRequest>& requests) {
    std::vector<Completion> flying;
    for (const IoRequest& request : requests) {
      flying.push_back(engine_.submit(request));
      bytes_ += request.length.count();
    }
    when_all(flying).wait();
  }
  std::byte* expected(const IoRequest& request) {
    const auto file = static_cast<size_t>(request.file) - static_cast<size_t>(ids_.front());
    return expected_[file].data() + request.offset;
  }

  IoEngine& engine_;
  int64_t unit_;
  Random random_;
  TestMemory source_;
  TestMemory target_;
  std::vector<FileId> ids_;
  std::vector<std::vector<std::byte>> expected_;
  int64_t bytes_ = 0;
  int compared_ = 0;
};

}  // namespace headrace::aio
