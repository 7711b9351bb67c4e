#include "engine/nvme_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/log.h"

namespace headrace::engine {

namespace {

std::vector<double> equal_shares(const std::string& reason) {
  log_message_once(
      LogLevel::info, "nvme weights",
      fmt::format("{}: all nvme paths get the same share of the data; `headrace probe` "
                  "on each path measures better ones",
                  reason));
  return {};
}

}  // namespace

std::vector<double> nvme_weights(const std::vector<std::string>& paths,
                                 const aio::ProfileCatalog& catalog) {
  if (paths.size() < 2) {
    return {};
  }
  std::vector<double> weights;
  weights.reserve(paths.size());
  for (const std::string& path : paths) {
    try {
      const auto profile = catalog.storage_for(path);
      if (!profile || !(profile->best().mixed_rate() > 0)) {
        return equal_shares(fmt::format("{} has no profile in {}", path, catalog.folder()));
      }
      weights.push_back(profile->best().mixed_rate());
    } catch (const Error& error) {
      return equal_shares(error.what());
    }
  }
  return weights;
}

std::optional<NvmeRates> nvme_rates(const std::vector<std::string>& paths,
                                    const aio::ProfileCatalog& catalog) {
  NvmeRates rates{0, std::numeric_limits<int64_t>::max()};
  for (const std::string& path : paths) {
    try {
      const auto profile = catalog.storage_for(path);
      if (!profile || !(profile->best().mixed_rate() > 0)) {
        return std::nullopt;
      }
      rates.mixed += profile->best().mixed_rate();
      rates.measured_unix_seconds =
          std::min<int64_t>(rates.measured_unix_seconds, profile->measured_unix_seconds());
    } catch (const Error&) {
      return std::nullopt;  // nvme_weights() has said so
    }
  }
  return paths.empty() ? std::nullopt : std::optional(rates);
}

std::vector<double> nvme_weights(const std::vector<std::string>& paths) {
  if (paths.size() < 2) {
    return {};
  }
  try {
    return nvme_weights(paths, aio::ProfileCatalog::standard());
  } catch (const InputError& error) {
    return equal_shares(error.what());
  }
}

}  // namespace headrace::engine
