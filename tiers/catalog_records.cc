#include "tiers/catalog_records.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "proto/catalog.pb.h"
#include "tiers/run_directory.h"

namespace headrace::tiers {

namespace {

constexpr std::string_view kObjectPrefix = "object/";
constexpr std::string_view kSnapshotPrefix = "snapshot/";
constexpr std::string_view kSnapshotRecord = "record";
/// Digits of a generation in a key, so that keys sort by number.
constexpr size_t kGenerationDigits = 20;

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

proto::GenerationRecord generation_record(uint64_t generation, int64_t committed,
                                          const std::map<std::string, std::string>& run_state) {
  proto::GenerationRecord record;
  record.set_generation(generation);
  record.set_committed_unix_nanoseconds(committed);
  record.mutable_run_state()->insert(run_state.begin(), run_state.end());
  return record;
}

}  // namespace

std::string object_key(const std::string& prefix, const std::string& name) {
  return prefix + std::string(kObjectPrefix) + name;
}

std::string snapshot_prefix(uint64_t generation) {
  return fmt::format("{}{:0{}}/", kSnapshotPrefix, generation, kGenerationDigits);
}

std::string snapshot_record_key(uint64_t generation) {
  return snapshot_prefix(generation) + std::string(kSnapshotRecord);
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

std::string generation_bytes(uint64_t generation, int64_t committed_unix_nanoseconds,
                             const std::map<std::string, std::string>& run_state) {
  return to_bytes(generation_record(generation, committed_unix_nanoseconds, run_state));
}

std::string updating_bytes(uint64_t next_generation) {
  proto::UpdatingRecord record;
  record.set_next_generation(next_generation);
  return to_bytes(record);
}

std::string snapshot_bytes(const CatalogSnapshot& snapshot) {
  proto::SnapshotRecord record;
  *record.mutable_generation() = generation_record(
      snapshot.generation, snapshot.committed_unix_nanoseconds, snapshot.run_state);
  record.set_taken_unix_nanoseconds(snapshot.taken_unix_nanoseconds);
  record.set_automatic(snapshot.automatic);
  return to_bytes(record);
}

void ContentsReader::add(std::string_view key, std::string_view value) {
  if (key == kStoreKey) {
    read_store(value);
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

CatalogContents ContentsReader::finish() {
  if (!has_store_) {
    throw InputError(fmt::format("{} is not a catalog of Headrace: it has no 'store'", directory_));
  }
  for (const auto& [generation, snapshot] : contents_.snapshots) {
    if (snapshot.taken_unix_nanoseconds == 0) {
      throw InputError(
          fmt::format("{}: the snapshot of generation {} has no record", directory_, generation));
    }
  }
  return std::move(contents_);
}

void ContentsReader::read_store(std::string_view value) {
  const auto record = from_bytes<proto::StoreRecord>(value, kStoreKey, directory_);
  if (record.format_version() != kRunFormatVersion) {
    throw InputError(fmt::format(
        "{} has format {}, this program reads format {}; use the version of Headrace that wrote it",
        directory_, record.format_version(), kRunFormatVersion));
  }
  contents_.store.run_id = record.run_id();
  contents_.store.directories.assign(record.directories().begin(), record.directories().end());
  contents_.store.weights.assign(record.weights().begin(), record.weights().end());
  has_store_ = true;
}

CatalogObject ContentsReader::object(std::string_view key, std::string_view value) const {
  try {
    return object_from(from_bytes<proto::ObjectRecord>(value, key, directory_));
  } catch (const std::invalid_argument& error) {
    throw InputError(fmt::format("{}: the catalog's value of '{}' is damaged: {}", directory_, key,
                                 error.what()));
  }
}

void ContentsReader::add_to_snapshot(std::string_view key, std::string_view value) {
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
  if (rest != kSnapshotRecord) {
    throw InputError(fmt::format("{}: unknown key '{}' in the catalog", directory_, key));
  }
  const auto record = from_bytes<proto::SnapshotRecord>(value, key, directory_);
  const proto::GenerationRecord& committed = record.generation();
  if (committed.generation() != generation) {
    throw InputError(
        fmt::format("{}: the catalog's value of '{}' is damaged: it is of generation {}",
                    directory_, key, committed.generation()));
  }
  snapshot.committed_unix_nanoseconds = committed.committed_unix_nanoseconds();
  snapshot.taken_unix_nanoseconds = record.taken_unix_nanoseconds();
  snapshot.automatic = record.automatic();
  snapshot.run_state.insert(committed.run_state().begin(), committed.run_state().end());
}

}  // namespace headrace::tiers
