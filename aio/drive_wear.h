#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::aio {

/// How worn a drive is, by its own account. A value.
struct Wear {
  std::optional<int> percent_used;    ///< of the rated endurance; may be above 100
  std::string unknown;                ///< why nothing can be read; then the rest is empty
  double bytes_written = 0;           ///< by hosts, since it was made
  int spare_percent = 100;            ///< blocks in reserve that are left
  int spare_needed = 0;               ///< percent; fewer are a warning
  int64_t media_errors = 0;           ///< times that data could not be recovered
  std::vector<std::string> warnings;  ///< what the drive itself calls critical

  /// "12 % of the rated endurance is used, 45.2 TB written, about 3.8 TB per percent".
  std::string text() const;
};

inline constexpr size_t kHealthLogBytes = 512;

/// Of a SMART / Health Information log page (NVM Express base specification, Get Log Page, log
/// identifier 02h). Counts beyond 64 bits are taken as the largest that there are.
Wear wear_of_log(std::span<const uint8_t, kHealthLogBytes> page);

/// Asks the drive ("nvme0n1"), which takes read access to /dev/<device> and mostly root. What
/// cannot be read is no error: `unknown` says why.
Wear read_wear(const std::string& device);

}  // namespace headrace::aio
