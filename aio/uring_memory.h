#pragma once

#include <liburing.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::aio {

/// The table of registered memory of one ring. Memory is registered in chunks, as many as the
/// memlock limit allows; what is left is used unregistered. Owned by the ring's thread.
class UringMemory {
 public:
  /// Makes the table on a ring that is open; a refusal is explained once.
  explicit UringMemory(io_uring& ring);

  /// Memory that overlaps a chunk registered before stays as it is.
  void add(std::span<std::byte> memory);
  /// Index of the chunk that holds all of [data, data + length); -1: none.
  int index_of(const std::byte* data, uint32_t length) const;
  int64_t bytes_registered() const { return bytes_registered_; }

 private:
  struct Chunk {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    int index = 0;
  };

  bool is_known(std::span<std::byte> memory) const;
  /// Registers one chunk; 0 or -errno.
  int add_chunk(std::span<std::byte> memory);

  io_uring* ring_;
  bool has_table_ = false;
  std::vector<Chunk> chunks_;  ///< sorted by address, without overlap
  int64_t bytes_registered_ = 0;
};

}  // namespace headrace::aio
