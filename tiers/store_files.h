#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/io.h"
#include "tiers/catalog.h"
#include "tiers/extent_allocator.h"
#include "tiers/extent_store.h"
#include "tiers/run_directory.h"

namespace headrace::tiers {

/// What a store has on disk: locked run directories, data files, catalog. Each member uses those
/// above it.
struct StoreFiles {
  std::vector<std::unique_ptr<RunDirectory>> directories;  ///< by index of the path
  std::unique_ptr<ExtentAllocator> allocator;
  std::unique_ptr<Catalog> catalog;

  std::vector<std::string> paths() const;
  /// Whether everything stays after the destructors.
  void set_keep(bool keep);
};

/// Files of a new run. Errors as ExtentStore::create.
StoreFiles create_store_files(const ExtentStoreOptions& options,
                              const std::shared_ptr<aio::IoEngine>& io);
/// Files of an earlier run, all space in them free. Errors as ExtentStore::open.
StoreFiles open_store_files(const ExtentStoreOptions& options,
                            const std::shared_ptr<aio::IoEngine>& io);

}  // namespace headrace::tiers
