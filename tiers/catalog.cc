#include "tiers/catalog.h"

#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "tiers/catalog_records.h"

namespace headrace::tiers {

namespace {

void check(const rocksdb::Status& status, const std::string& what, const std::string& directory) {
  if (!status.ok()) {
    IoError::Where where;
    where.path = directory;
    throw IoError(fmt::format("{}: RocksDB says '{}'", what, status.ToString()), where);
  }
}

/// RocksDB's own log: errors go to ours, the rest nowhere; so the folder gets no log files.
class ErrorLogger final : public rocksdb::Logger {
 public:
  ErrorLogger() : rocksdb::Logger(rocksdb::InfoLogLevel::ERROR_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    std::array<char, 512> text{};
    if (std::vsnprintf(text.data(), text.size(), format, arguments) > 0) {
      const std::string_view line(text.data());
      log_warning("catalog: {}", line.substr(0, line.find('\n')));
    }
  }
};

/// A few thousand small values that are written once per step and read once per run: everything
/// that RocksDB keeps in memory for speed is turned down.
rocksdb::Options database_options() {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{512} << 10, 0);
  rocksdb::Options options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = size_t{1} << 20;
  options.max_write_buffer_number = 2;
  options.arena_block_size = size_t{64} << 10;
  options.max_total_wal_size = uint64_t{4} << 20;
  options.max_background_jobs = 1;
  options.max_open_files = 16;
  options.max_file_opening_threads = 1;
  options.table_cache_numshardbits = 0;
  options.compression = rocksdb::kNoCompression;
  options.max_manifest_file_size = size_t{1} << 20;
  options.info_log = std::make_shared<ErrorLogger>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.track_and_verify_wals_in_manifest = true;
  return options;
}

rocksdb::WriteOptions synced() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

CatalogContents read_contents(rocksdb::DB& db, const std::string& directory) {
  ContentsReader reader(directory);
  const std::unique_ptr<rocksdb::Iterator> at(db.NewIterator(rocksdb::ReadOptions()));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    reader.add(at->key().ToStringView(), at->value().ToStringView());
  }
  check(at->status(), "reading the catalog", directory);
  return reader.finish();
}

/// A batch that checks every step.
class Batch {
 public:
  explicit Batch(const std::string& directory) : directory_(directory) {}
  void put(const std::string& key, const std::string& value) {
    check(batch_.Put(key, value), kWhat, directory_);
  }
  void remove(const std::string& key) { check(batch_.Delete(key), kWhat, directory_); }
  /// Every key that begins with `prefix`, which ends with '/'.
  void remove_all(const std::string& prefix) {
    std::string end = prefix;
    ++end.back();
    check(batch_.DeleteRange(prefix, end), kWhat, directory_);
  }
  void write(rocksdb::DB& db) {
    fault_point("before batch");
    check(db.Write(synced(), &batch_), "committing to the catalog", directory_);
    fault_point("after batch");
  }

 private:
  static constexpr const char* kWhat = "preparing a commit";
  const std::string& directory_;
  rocksdb::WriteBatch batch_;
};

}  // namespace

int64_t unix_nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Catalog::Catalog(const std::string& directory, const CatalogStore& store) : directory_(directory) {
  if (::mkdir(directory.c_str(), 0700) != 0) {
    IoError::Where where;
    where.path = directory;
    where.error_number = errno;
    throw IoError("making the folder failed", where);
  }
  rocksdb::Options options = database_options();
  options.create_if_missing = true;
  options.error_if_exists = true;
  rocksdb::DB* opened = nullptr;
  try {
    check(rocksdb::DB::Open(options, directory, &opened), "making the catalog", directory);
    db_.reset(opened);
    check(db_->Put(synced(), rocksdb::Slice(kStoreKey), store_bytes(store)), "writing the catalog",
          directory);
  } catch (...) {
    remove();
    throw;
  }
}

Catalog::Catalog(const std::string& directory) : directory_(directory), keep_(true) {
  rocksdb::DB* opened = nullptr;
  check(rocksdb::DB::Open(database_options(), directory, &opened), "opening the catalog",
        directory);
  db_.reset(opened);
}

Catalog::~Catalog() {
  if (keep_) {
    const rocksdb::Status closed = db_->Close();
    if (!closed.ok()) {
      log_warning("closing the catalog {}: {}", directory_, closed.ToString());
    }
    return;
  }
  remove();
}

void Catalog::remove() noexcept {
  db_.reset();
  const rocksdb::Status removed = rocksdb::DestroyDB(directory_, database_options());
  if (!removed.ok()) {
    log_warning("removing the catalog {}: {}", directory_, removed.ToString());
  }
}

CatalogContents Catalog::read() const {
  return read_contents(*db_, directory_);
}

void Catalog::commit(const CatalogChange& change) {
  Batch batch(directory_);
  for (const auto& [name, object] : change.written) {
    batch.put(object_key("", name), object_bytes(object));
  }
  for (const std::string& name : change.removed) {
    batch.remove(object_key("", name));
  }
  batch.put(
      std::string(kGenerationKey),
      generation_bytes(change.generation, change.committed_unix_nanoseconds, change.run_state));
  batch.remove(std::string(kUpdatingKey));
  batch.write(*db_);
}

void Catalog::mark_updating(uint64_t next_generation) {
  Batch batch(directory_);
  batch.put(std::string(kUpdatingKey), updating_bytes(next_generation));
  batch.write(*db_);
}

void Catalog::change_snapshots(const CatalogSnapshot* added, const std::vector<uint64_t>& removed) {
  Batch batch(directory_);
  for (const uint64_t generation : removed) {
    batch.remove_all(snapshot_prefix(generation));
  }
  if (added != nullptr) {
    const std::string prefix = snapshot_prefix(added->generation);
    batch.remove_all(prefix);
    batch.put(snapshot_record_key(added->generation), snapshot_bytes(*added));
    for (const auto& [name, object] : added->objects) {
      batch.put(object_key(prefix, name), object_bytes(object));
    }
  }
  batch.write(*db_);
}

void Catalog::write_store(const CatalogStore& store) {
  Batch batch(directory_);
  batch.put(std::string(kStoreKey), store_bytes(store));
  batch.write(*db_);
}

CatalogContents read_catalog(const std::string& directory) {
  rocksdb::DB* opened = nullptr;
  check(rocksdb::DB::OpenForReadOnly(database_options(), directory, &opened), "opening the catalog",
        directory);
  const std::unique_ptr<rocksdb::DB> db(opened);
  return read_contents(*db, directory);
}

}  // namespace headrace::tiers
