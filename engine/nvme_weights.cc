#include "engine/nvme_weights.h"

#include <fmt/format.h>

#include <algorithm>

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

void NvmeRates::add(const proto::StorageProfile& profile) {
  read += profile.best().read_rate();
  write += profile.best().write_rate();
  mixed += profile.best().mixed_rate();
  const int64_t then = profile.measured_unix_seconds();
  measured_unix_seconds =
      measured_unix_seconds == 0 ? then : std::min<int64_t>(measured_unix_seconds, then);
}

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
  NvmeRates rates;
  for (const std::string& path : paths) {
    try {
      const auto profile = catalog.storage_for(path);
      if (!profile || !(profile->best().mixed_rate() > 0)) {
        return std::nullopt;
      }
      rates.add(*profile);
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
