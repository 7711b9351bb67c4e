#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/units.h"
#include "tiers/extent_io.h"
#include "tiers/host_memory.h"

namespace headrace::tiers {

/// Reads ranges of one committed value, in any order, best front to back. Reads and verifies whole
/// extents and keeps the last one, so it takes up to kExtentMax of memory. Holds the value's space.
/// Must not outlive its store. Not thread-safe; blocks.
class ValueReader {
 public:
  ValueReader(ExtentIo& io, std::string name, StoredValueRef value)
      : io_(io), name_(std::move(name)), value_(std::move(value)) {}

  Bytes size() const { return value_->size(); }
  /// Bytes [offset, offset + out.size()) of the value. IoError as ExtentStore::read.
  void read(int64_t offset, std::span<std::byte> out);

 private:
  void load(size_t extent);

  ExtentIo& io_;
  std::string name_;
  StoredValueRef value_;
  std::optional<HostMemory> buffer_;
  std::optional<size_t> loaded_;  ///< extent in the buffer
};

}  // namespace headrace::tiers
