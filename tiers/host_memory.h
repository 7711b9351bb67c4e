#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/units.h"

namespace headrace::tiers {

/// The process's memory for one plan: one anonymous mapping, page aligned, zero. It is made of
/// explicit huge pages where the system has set enough aside and they are free, else of transparent
/// ones where the kernel gives them; from 2 MiB on it begins at a multiple of 2 MiB. On a machine
/// with several NUMA nodes it is bound to `numa_node`, or spread over all nodes. Owns the mapping.
/// Immutable, so any thread may use it.
class HostMemory {
 public:
  /// `pin` locks the pages in memory, which also takes them at once; a refusal is logged once with
  /// what it costs. CapacityError if less than `size` can be had now; InputError for a node that
  /// does not exist.
  explicit HostMemory(Bytes size, bool pin, std::optional<int> numa_node = std::nullopt);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_.count())}; }
  bool is_pinned() const { return is_pinned_; }
  /// "explicit", "transparent" or "none".
  const char* huge_pages() const;

 private:
  enum class HugePages : uint8_t { none, transparent, explicit_pages };

  size_t mapped_size() const { return mapped_size_; }
  bool map_explicit(std::optional<int> numa_node);
  void map_transparent(std::optional<int> numa_node);
  void unmap();
  void bind(std::optional<int> numa_node);
  void pin();

  std::byte* data_ = nullptr;
  Bytes size_;
  size_t mapped_size_ = 0;
  bool is_pinned_ = false;
  HugePages huge_pages_ = HugePages::none;
};

}  // namespace headrace::tiers
