#pragma once

#include <string>
#include <vector>

#include "aio/profile_catalog.h"

namespace headrace::engine {

/// Shares of the data per nvme path: the stored mixed rate of each path's storage. Empty (equal
/// shares) for one path, and with one line for the user where a path has no profile.
std::vector<double> nvme_weights(const std::vector<std::string>& paths,
                                 const aio::ProfileCatalog& catalog);
/// With the standard catalog.
std::vector<double> nvme_weights(const std::vector<std::string>& paths);

}  // namespace headrace::engine
