#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::tiers {

/// XXH3 64-bit with seed 0: the checksum of extents.
uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace headrace::tiers
