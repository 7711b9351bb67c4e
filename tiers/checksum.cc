#include "tiers/checksum.h"

#include <xxhash.h>

namespace headrace::tiers {

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace headrace::tiers
