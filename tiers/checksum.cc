#include "tiers/checksum.h"

#ifdef HEADRACE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3_64bits() for the instruction set of the processor
#else
#include <xxhash.h>
#endif

namespace headrace::tiers {

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace headrace::tiers
