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
/// What reads and writes over all paths together reach, in bytes per second, as their profiles say:
/// each while both go on, as in a step. Empty where a path has none.
struct NvmeRates {
  double read = 0;
  double write = 0;
};
std::optional<NvmeRates> nvme_rates(const std::vector<std::string>& paths,
                                    const aio::ProfileCatalog& catalog);
/// With the standard catalog.
std::vector<double> nvme_weights(const std::vector<std::string>& paths);
std::optional<NvmeRates> nvme_rates(const std::vector<std::string>& paths);

}  // namespace headrace::engine
