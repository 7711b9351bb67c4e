#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aio/profile_catalog.h"

namespace headrace::engine {

/// Shares of the data per nvme path: the stored mixed rate of each path's storage. Empty (equal
/// shares) for one path, and with one line for the user where a path has no profile.
std::vector<double> nvme_weights(const std::vector<std::string>& paths,
                                 const aio::ProfileCatalog& catalog);
/// What all paths together reach, as their profiles say. Empty where a path has none.
struct NvmeRates {
  double read = 0;                    ///< bytes per second while nothing is written
  double write = 0;                   ///< the same the other way round
  double mixed = 0;                   ///< of as many reads as writes that go on together
  int64_t measured_unix_seconds = 0;  ///< of the oldest profile; 0: none

  void add(const proto::StorageProfile& profile);
};
std::optional<NvmeRates> nvme_rates(const std::vector<std::string>& paths,
                                    const aio::ProfileCatalog& catalog);
/// With the standard catalog.
std::vector<double> nvme_weights(const std::vector<std::string>& paths);

}  // namespace headrace::engine
