#include "aio/uring_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"

namespace headrace::aio {

namespace {

constexpr unsigned kChunksMax = 1024;
constexpr size_t kChunkBytesMax = size_t{1} << 30;  ///< the kernel's limit per buffer
/// A huge page, which the kernel counts as a whole; smaller chunks would hold few parts in full.
constexpr size_t kChunkBytesMin = size_t{2} << 20;

}  // namespace

UringMemory::UringMemory(io_uring& ring) : ring_(&ring) {
  const int result = io_uring_register_buffers_sparse(ring_, kChunksMax);
  has_table_ = result >= 0;
  if (!has_table_) {
    log_message_once(LogLevel::info, "io_uring buffers",
                     fmt::format("io_uring: no table of registered buffers ({}); costs CPU time "
                                 "to pin the pages of every transfer",
                                 errno_text(-result)));
  }
}

bool UringMemory::is_known(std::span<std::byte> memory) const {
  return std::any_of(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) {
    return chunk.begin < memory.data() + memory.size() && memory.data() < chunk.end;
  });
}

void UringMemory::add(std::span<std::byte> memory) {
  const auto total = static_cast<int64_t>(memory.size());
  const int64_t before = bytes_registered_;
  size_t largest = kChunkBytesMax;
  int refusal = 0;
  while (!memory.empty() && has_table_) {
    const auto chunk = memory.first(std::min(memory.size(), largest));
    const int result = is_known(chunk) ? 0 : add_chunk(chunk);
    if (result == 0) {
      memory = memory.subspan(chunk.size());
      continue;
    }
    refusal = result;
    if (result != -ENOMEM || chunk.size() <= kChunkBytesMin) {
      break;
    }
    // The limit leaves no room for this much: try half of it.
    largest = std::max(kChunkBytesMin,
                       (chunk.size() / 2 + kChunkBytesMin - 1) / kChunkBytesMin * kChunkBytesMin);
  }
  if (refusal != 0 && !memory.empty()) {
    log_message_once(
        LogLevel::info, "io_uring memory",
        fmt::format("io_uring: {} of {} of memory are registered, then the kernel refused ({}){}; "
                    "transfers of the rest work, but cost CPU time to pin their pages each time",
                    format_bytes(Bytes(bytes_registered_ - before)), format_bytes(Bytes(total)),
                    errno_text(-refusal),
                    refusal == -ENOMEM ? ": raise the memlock limit (ulimit -l)" : ""));
  }
}

int UringMemory::add_chunk(std::span<std::byte> memory) {
  const auto index = static_cast<unsigned>(chunks_.size());
  if (index >= kChunksMax) {
    return -ENOSPC;
  }
  iovec range{.iov_base = memory.data(), .iov_len = memory.size()};
  const __u64 tag = 0;
  const int result = io_uring_register_buffers_update_tag(ring_, index, &range, &tag, 1);
  if (result != 1) {
    return result < 0 ? result : -EIO;
  }
  const auto place = std::lower_bound(
      chunks_.begin(), chunks_.end(), memory.data(),
      [](const Chunk& chunk, const std::byte* begin) { return chunk.end <= begin; });
  chunks_.insert(place, Chunk{.begin = memory.data(),
                              .end = memory.data() + memory.size(),
                              .index = static_cast<int>(index)});
  bytes_registered_ += static_cast<int64_t>(memory.size());
  return 0;
}

int UringMemory::index_of(const std::byte* data, uint32_t length) const {
  const auto place = std::upper_bound(
      chunks_.begin(), chunks_.end(), data,
      [](const std::byte* begin, const Chunk& chunk) { return begin < chunk.end; });
  const bool inside = place != chunks_.end() && data >= place->begin && data + length <= place->end;
  return inside ? place->index : -1;
}

}  // namespace headrace::aio
