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
#include <charconv>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "proto/catalog.pb.h"
#include "tiers/run_directory.h"

namespace headrace::tiers {

namespace {

constexpr std::string_view kStoreKey = "store";
constexpr std::string_view kGenerationKey = "generation";
constexpr std::string_view kUpdatingKey = "updating";
constexpr std::string_view kObjectPrefix = "object/";
constexpr std::string_view kSnapshotPrefix = "snapshot/";
constexpr std::string_view kSnapshotRecord = "record";
/// Digits of a generation in a key, so that keys sort by number.
constexpr size_t kGenerationDigits = 20;

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

template <class Record>
std::string to_bytes(const Record& record) {
  std::string bytes;
  if (!record.SerializeToString(&bytes)) {
    throw InternalError("internal error: a catalog record could not be serialized");
  }
  return bytes;
}

template <class Record>
Record from_bytes(std::string_view bytes, std::string_view key, const std::string& directory) {
  Record record;
  if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw InputError(fmt::format("{}: the catalog's value of '{}' cannot be read", directory, key));
  }
  return record;
}

std::string object_bytes(const CatalogObject& object) {
  proto::ObjectRecord record;
  record.set_size(object.size.count());
  record.set_generation(object.generation);
  for (const Extent& extent : object.extents) {
    proto::ExtentRecord& to = *record.add_extents();
    to.set_path(extent.path);
    to.set_file(extent.file);
    to.set_offset(extent.offset);
    to.set_length(extent.length.count());
    to.set_xxh3_64(extent.checksum);
  }
  return to_bytes(record);
}

/// Throws std::invalid_argument with what is impossible about the record.
CatalogObject object_from(const proto::ObjectRecord& record) {
  CatalogObject object;
  object.size = Bytes(record.size());
  object.generation = record.generation();
  int64_t left = record.size();
  for (const proto::ExtentRecord& from : record.extents()) {
    if (from.offset() < 0 || from.offset() % kExtentAlignment.count() != 0 || from.length() <= 0 ||
        from.length() > left || from.length() > kExtentMax.count()) {
      throw std::invalid_argument(
          fmt::format("an extent of {} bytes at offset {}", from.length(), from.offset()));
    }
    left -= from.length();
    object.extents.push_back(
        {from.path(), from.file(), from.offset(), Bytes(from.length()), from.xxh3_64()});
  }
  if (left != 0) {
    throw std::invalid_argument(
        fmt::format("extents of {} bytes for a value of {}", record.size() - left, record.size()));
  }
  return object;
}

std::string store_bytes(const CatalogStore& store) {
  proto::StoreRecord record;
  record.set_format_version(kRunFormatVersion);
  record.set_run_id(store.run_id);
  for (const std::string& directory : store.directories) {
    record.add_directories(directory);
  }
  record.mutable_weights()->Add(store.weights.begin(), store.weights.end());
  return to_bytes(record);
}

proto::GenerationRecord generation_record(uint64_t generation, int64_t committed,
                                          const std::map<std::string, std::string>& run_state) {
  proto::GenerationRecord record;
  record.set_generation(generation);
  record.set_committed_unix_nanoseconds(committed);
  record.mutable_run_state()->insert(run_state.begin(), run_state.end());
  return record;
}

std::string snapshot_bytes(const CatalogSnapshot& snapshot) {
  proto::SnapshotRecord record;
  *record.mutable_generation() = generation_record(
      snapshot.generation, snapshot.committed_unix_nanoseconds, snapshot.run_state);
  record.set_taken_unix_nanoseconds(snapshot.taken_unix_nanoseconds);
  record.set_automatic(snapshot.automatic);
  return to_bytes(record);
}

std::string snapshot_prefix(uint64_t generation) {
  return fmt::format("{}{:0{}}/", kSnapshotPrefix, generation, kGenerationDigits);
}

rocksdb::WriteOptions synced() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

void read_store(const proto::StoreRecord& record, const std::string& directory,
                CatalogStore& store) {
  if (record.format_version() != kRunFormatVersion) {
    throw InputError(fmt::format(
        "{} has format {}, this program reads format {}; use the version of Headrace that wrote it",
        directory, record.format_version(), kRunFormatVersion));
  }
  store.run_id = record.run_id();
  store.directories.assign(record.directories().begin(), record.directories().end());
  store.weights.assign(record.weights().begin(), record.weights().end());
}

/// Puts a catalog together from its keys and values.
class ContentsReader {
 public:
  explicit ContentsReader(const std::string& directory) : directory_(directory) {}

  void add(std::string_view key, std::string_view value) {
    if (key == kStoreKey) {
      read_store(from_bytes<proto::StoreRecord>(value, key, directory_), directory_,
                 contents_.store);
      has_store_ = true;
    } else if (key == kGenerationKey) {
      const auto record = from_bytes<proto::GenerationRecord>(value, key, directory_);
      contents_.has_generation = true;
      contents_.generation = record.generation();
      contents_.committed_unix_nanoseconds = record.committed_unix_nanoseconds();
      contents_.run_state.insert(record.run_state().begin(), record.run_state().end());
    } else if (key == kUpdatingKey) {
      contents_.updating =
          from_bytes<proto::UpdatingRecord>(value, key, directory_).next_generation();
    } else if (key.starts_with(kObjectPrefix)) {
      contents_.objects.emplace(key.substr(kObjectPrefix.size()), object(key, value));
    } else if (key.starts_with(kSnapshotPrefix)) {
      add_to_snapshot(key, value);
    } else {
      throw InputError(fmt::format("{}: unknown key '{}' in the catalog", directory_, key));
    }
  }

  CatalogContents finish() {
    if (!has_store_) {
      throw InputError(
          fmt::format("{} is not a catalog of Headrace: it has no 'store'", directory_));
    }
    for (const auto& [generation, snapshot] : contents_.snapshots) {
      if (snapshot.taken_unix_nanoseconds == 0) {
        throw InputError(
            fmt::format("{}: the snapshot of generation {} has no record", directory_, generation));
      }
    }
    return std::move(contents_);
  }

 private:
  CatalogObject object(std::string_view key, std::string_view value) const {
    try {
      return object_from(from_bytes<proto::ObjectRecord>(value, key, directory_));
    } catch (const std::invalid_argument& error) {
      throw InputError(fmt::format("{}: the catalog's value of '{}' is damaged: {}", directory_,
                                   key, error.what()));
    }
  }

  void add_to_snapshot(std::string_view key, std::string_view value) {
    const std::string_view number = key.substr(kSnapshotPrefix.size()).substr(0, kGenerationDigits);
    uint64_t generation = 0;
    const auto end = std::from_chars(number.data(), number.data() + number.size(), generation);
    if (end.ec != std::errc() || !key.starts_with(snapshot_prefix(generation))) {
      throw InputError(fmt::format("{}: unknown key '{}' in the catalog", directory_, key));
    }
    CatalogSnapshot& snapshot = contents_.snapshots[generation];
    snapshot.generation = generation;
    const std::string_view rest = key.substr(snapshot_prefix(generation).size());
    if (rest.starts_with(kObjectPrefix)) {
      snapshot.objects.emplace(rest.substr(kObjectPrefix.size()), object(key, value));
      return;
    }
    const auto record = from_bytes<proto::SnapshotRecord>(value, key, directory_);
    const proto::GenerationRecord& committed = record.generation();
    snapshot.committed_unix_nanoseconds = committed.committed_unix_nanoseconds();
    snapshot.taken_unix_nanoseconds = record.taken_unix_nanoseconds();
    snapshot.automatic = record.automatic();
    snapshot.run_state.insert(committed.run_state().begin(), committed.run_state().end());
  }

  std::string directory_;
  CatalogContents contents_;
  bool has_store_ = false;
};

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

std::string object_key(const std::string& prefix, const std::string& name) {
  return prefix + std::string(kObjectPrefix) + name;
}

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
  batch.put(std::string(kGenerationKey),
            to_bytes(generation_record(change.generation, change.committed_unix_nanoseconds,
                                       change.run_state)));
  batch.remove(std::string(kUpdatingKey));
  batch.write(*db_);
}

void Catalog::mark_updating(uint64_t next_generation) {
  proto::UpdatingRecord record;
  record.set_next_generation(next_generation);
  Batch batch(directory_);
  batch.put(std::string(kUpdatingKey), to_bytes(record));
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
    batch.put(prefix + std::string(kSnapshotRecord), snapshot_bytes(*added));
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
