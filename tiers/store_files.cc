#include "tiers/store_files.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace headrace::tiers {

namespace {

std::string absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal();
}

/// Throws InputError where the options cannot be used.
void check_options(const ExtentStoreOptions& options) {
  if (options.paths.empty()) {
    throw InputError("offload to nvme needs at least one path (nvme_path)");
  }
  std::set<std::string> seen;
  for (const std::string& path : options.paths) {
    if (path.empty() || !seen.insert(std::filesystem::weakly_canonical(path)).second) {
      throw InputError(fmt::format("nvme path '{}' is empty or given twice", path));
    }
  }
  if (!options.weights.empty() && options.weights.size() != options.paths.size()) {
    throw InputError(
        fmt::format("{} nvme paths, but {} weights", options.paths.size(), options.weights.size()));
  }
  for (const double weight : options.weights) {
    if (!std::isfinite(weight) || weight <= 0) {
      throw InputError(fmt::format("weight {} of an nvme path must be above 0", weight));
    }
  }
  if (options.disk_budget < kExtentAlignment || options.growth_step < kExtentAlignment) {
    throw InputError(fmt::format("disk budget ({}) and growth step ({}) must be at least {}",
                                 format_bytes(options.disk_budget),
                                 format_bytes(options.growth_step),
                                 format_bytes(kExtentAlignment)));
  }
}

std::unique_ptr<ExtentAllocator> make_allocator(const ExtentStoreOptions& options,
                                                const std::vector<std::string>& directories,
                                                const std::vector<double>& weights,
                                                const std::shared_ptr<aio::IoEngine>& io) {
  return std::make_unique<ExtentAllocator>(
      ExtentAllocator::Options{directories, weights, options.disk_budget, options.growth_step,
                               options.prewrite},
      io);
}

std::string catalog_path(const StoreFiles& files) {
  return files.directories.front()->path() + "/catalog";
}

/// The directory of each path and its weight, in the order in which the run was made.
std::vector<double> open_directories(const ExtentStoreOptions& options, StoreFiles& files) {
  const size_t count = options.paths.size();
  files.directories.resize(count);
  std::vector<double> weights(count, 1.0);
  for (size_t i = 0; i < count; ++i) {
    const std::string path =
        fmt::format("{}/headrace-{}", absolute(options.paths[i]), options.run_id);
    if (!std::filesystem::exists(path)) {
      throw InputError(fmt::format("{} does not exist: there is no run '{}' in {}", path,
                                   options.run_id, options.paths[i]));
    }
    const RunIdentity identity = read_run_identity(path);
    if (identity.run_id != options.run_id) {
      throw InputError(fmt::format("{} holds run '{}'", path, identity.run_id));
    }
    if (identity.count != static_cast<int>(count)) {
      throw InputError(fmt::format(
          "{} is path {} of {} of its run, but {} are given; name all of them, in any order", path,
          identity.index + 1, identity.count, count));
    }
    auto& place = files.directories[static_cast<size_t>(identity.index)];
    if (place != nullptr) {
      throw InputError(
          fmt::format("{} and {} are the same part of their run", place->path(), path));
    }
    place = std::make_unique<RunDirectory>(path);
    if (!options.weights.empty()) {
      weights[static_cast<size_t>(identity.index)] = options.weights[i];
    }
  }
  return weights;
}

}  // namespace

std::vector<std::string> StoreFiles::paths() const {
  std::vector<std::string> paths;
  for (const auto& directory : directories) {
    paths.push_back(directory->path());
  }
  return paths;
}

void StoreFiles::set_keep(bool keep) {
  keep ? catalog->keep() : catalog->remove_on_close();
  allocator->set_keep(keep);
  for (const auto& directory : directories) {
    keep ? directory->keep() : directory->remove_on_close();
  }
}

StoreFiles create_store_files(const ExtentStoreOptions& options,
                              const std::shared_ptr<aio::IoEngine>& io) {
  check_options(options);
  const std::string run_id = options.run_id.empty() ? make_run_id() : options.run_id;
  const int count = static_cast<int>(options.paths.size());
  StoreFiles files;
  for (int i = 0; i < count; ++i) {
    files.directories.push_back(std::make_unique<RunDirectory>(
        absolute(options.paths[static_cast<size_t>(i)]), run_id, i, count));
  }
  std::vector<double> weights = options.weights;
  weights.resize(options.paths.size(), 1.0);
  files.allocator = make_allocator(options, files.paths(), weights, io);
  files.catalog =
      std::make_unique<Catalog>(catalog_path(files), CatalogStore{run_id, files.paths(), weights});
  return files;
}

StoreFiles open_store_files(const ExtentStoreOptions& options,
                            const std::shared_ptr<aio::IoEngine>& io) {
  check_options(options);
  StoreFiles files;
  const std::vector<double> weights = open_directories(options, files);
  files.allocator = make_allocator(options, files.paths(), weights, io);
  files.catalog = std::make_unique<Catalog>(catalog_path(files));
  files.allocator->open_existing();
  return files;
}

}  // namespace headrace::tiers
