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

#include "base/error.h"
#include "base/log.h"
#include "proto/catalog.pb.h"
#include "tiers/run_directory.h"

namespace headrace::tiers {

namespace {

constexpr std::string_view kStoreKey = "store";
constexpr std::string_view kGenerationKey = "generation";
constexpr std::string_view kObjectPrefix = "object/";

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

CatalogObject object_from(const proto::ObjectRecord& record) {
  CatalogObject object;
  object.size = Bytes(record.size());
  object.generation = record.generation();
  for (const proto::ExtentRecord& from : record.extents()) {
    object.extents.push_back(
        {from.path(), from.file(), from.offset(), Bytes(from.length()), from.xxh3_64()});
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

std::string generation_bytes(const CatalogChange& change) {
  proto::GenerationRecord record;
  record.set_generation(change.generation);
  record.set_committed_unix_nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                            std::chrono::system_clock::now().time_since_epoch())
                                            .count());
  record.mutable_run_state()->insert(change.run_state.begin(), change.run_state.end());
  return to_bytes(record);
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

}  // namespace

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

void Catalog::commit(const CatalogChange& change) {
  rocksdb::WriteBatch batch;
  const auto put = [&](std::string_view key, const std::string& value) {
    check(batch.Put(rocksdb::Slice(key), value), "preparing a commit", directory_);
  };
  for (const auto& [name, object] : change.written) {
    put(std::string(kObjectPrefix) + name, object_bytes(object));
  }
  for (const std::string& name : change.removed) {
    check(batch.Delete(std::string(kObjectPrefix) + name), "preparing a commit", directory_);
  }
  put(kGenerationKey, generation_bytes(change));
  check(db_->Write(synced(), &batch), "committing to the catalog", directory_);
}

CatalogContents read_catalog(const std::string& directory) {
  rocksdb::DB* opened = nullptr;
  check(rocksdb::DB::OpenForReadOnly(database_options(), directory, &opened), "opening the catalog",
        directory);
  const std::unique_ptr<rocksdb::DB> db(opened);
  CatalogContents contents;
  bool has_store = false;
  const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator(rocksdb::ReadOptions()));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    const std::string_view key = at->key().ToStringView();
    const std::string_view value = at->value().ToStringView();
    if (key == kStoreKey) {
      read_store(from_bytes<proto::StoreRecord>(value, key, directory), directory, contents.store);
      has_store = true;
    } else if (key == kGenerationKey) {
      const auto record = from_bytes<proto::GenerationRecord>(value, key, directory);
      contents.has_generation = true;
      contents.generation = record.generation();
      contents.run_state.insert(record.run_state().begin(), record.run_state().end());
    } else if (key.starts_with(kObjectPrefix)) {
      contents.objects.emplace(key.substr(kObjectPrefix.size()),
                               object_from(from_bytes<proto::ObjectRecord>(value, key, directory)));
    } else {
      throw InputError(fmt::format("{}: unknown key '{}' in the catalog", directory, key));
    }
  }
  check(at->status(), "reading the catalog", directory);
  if (!has_store) {
    throw InputError(fmt::format("{} is not a catalog of Headrace: it has no 'store'", directory));
  }
  return contents;
}

}  // namespace headrace::tiers
