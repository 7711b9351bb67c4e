#pragma once

#include <cstdint>
#include <string>

namespace headrace::tiers {

/// The huge pages of 2 MiB that this system gives.
struct HugePageFacts {
  std::string transparent;     ///< "always", "madvise", "never"; empty: the kernel has none
  int64_t explicit_pages = 0;  ///< set aside
  int64_t explicit_free = 0;

  /// Whether memory that asks for transparent huge pages gets them.
  bool gives_transparent() const { return transparent == "always" || transparent == "madvise"; }
};

/// Reads /sys below `root`; thread-safe.
HugePageFacts huge_page_facts(const std::string& root = "");

}  // namespace headrace::tiers
