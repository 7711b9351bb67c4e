#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "tiers/extent_allocator.h"

namespace rocksdb {
class DB;
}

namespace headrace::tiers {

/// What a run is; written when its catalog is made.
struct CatalogStore {
  std::string run_id;
  std::vector<std::string> directories;  ///< by Extent::path
  std::vector<double> weights;
};

/// A committed value.
struct CatalogObject {
  Bytes size;
  uint64_t generation = 0;  ///< of the commit that wrote it
  std::vector<Extent> extents;
};

/// Everything a catalog holds.
struct CatalogContents {
  CatalogStore store;
  bool has_generation = false;  ///< false: nothing was committed yet
  uint64_t generation = 0;
  std::map<std::string, std::string> run_state;
  std::map<std::string, CatalogObject> objects;
};

/// One atomic change of the committed state.
struct CatalogChange {
  uint64_t generation = 0;
  std::map<std::string, std::string> run_state;
  std::map<std::string, CatalogObject> written;
  std::vector<std::string> removed;
};

/// The catalog of a new run: a RocksDB in its own folder, set up to use little memory. Owns the
/// folder: the destructor closes it, and removes it unless keep() was called. Thread-safe. Errors:
/// IoError with RocksDB's text.
class Catalog {
 public:
  Catalog(const std::string& directory, const CatalogStore& store);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog();

  /// Durable, and all or nothing, when it returns.
  void commit(const CatalogChange& change);
  void keep() { keep_ = true; }

 private:
  void remove() noexcept;

  std::string directory_;
  std::unique_ptr<rocksdb::DB> db_;
  bool keep_ = false;
};

/// Reads a whole catalog without changing it, also one that is in use or was left by a crash.
/// InputError if it is not a catalog of this format.
CatalogContents read_catalog(const std::string& directory);

}  // namespace headrace::tiers
