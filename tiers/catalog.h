#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "tiers/extent_allocator.h"

namespace rocksdb {
class DB;
}

namespace headrace::tiers {

/// The time as the catalog writes it.
int64_t unix_nanoseconds_now();

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

/// A generation that stays until it is deleted.
struct CatalogSnapshot {
  uint64_t generation = 0;
  int64_t committed_unix_nanoseconds = 0;
  int64_t taken_unix_nanoseconds = 0;
  bool automatic = false;  ///< by save_interval: counts for keep_last
  std::map<std::string, std::string> run_state;
  std::map<std::string, CatalogObject> objects;
};

/// Everything a catalog holds.
struct CatalogContents {
  CatalogStore store;
  bool has_generation = false;  ///< false: nothing was committed yet
  uint64_t generation = 0;
  int64_t committed_unix_nanoseconds = 0;
  /// Set: the run ended while values were being overwritten in place, so `objects` is not whole.
  std::optional<uint64_t> updating;
  std::map<std::string, std::string> run_state;
  std::map<std::string, CatalogObject> objects;
  std::map<uint64_t, CatalogSnapshot> snapshots;
};

/// One atomic change of the committed state.
struct CatalogChange {
  uint64_t generation = 0;
  int64_t committed_unix_nanoseconds = 0;
  std::map<std::string, std::string> run_state;
  std::map<std::string, CatalogObject> written;
  std::vector<std::string> removed;
};

/// The catalog of a run: a RocksDB in its own folder, set up to use little memory. One that was
/// made here owns its folder: the destructor removes it unless keep() was called. Every change is
/// durable, and all or nothing, when its function returns. Thread-safe. Errors: IoError with
/// RocksDB's text; InputError for a catalog that is none, or of another format.
class Catalog {
 public:
  /// Of a new run.
  Catalog(const std::string& directory, const CatalogStore& store);
  /// Of an earlier run; it is kept.
  explicit Catalog(const std::string& directory);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog();

  CatalogContents read() const;
  /// Also ends what mark_updating() began.
  void commit(const CatalogChange& change);
  void mark_updating(uint64_t next_generation);
  /// Adds one snapshot (where not null; it replaces one of the same generation) and removes others.
  void change_snapshots(const CatalogSnapshot* added, const std::vector<uint64_t>& removed);
  void write_store(const CatalogStore& store);
  void keep() { keep_ = true; }
  /// Undoes keep().
  void remove_on_close() { keep_ = false; }

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
