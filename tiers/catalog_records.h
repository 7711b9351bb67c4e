#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tiers/catalog.h"

namespace headrace::tiers {

/// The keys and values of a catalog; docs/formats.md, "Catalog". Pure functions.
inline constexpr std::string_view kStoreKey = "store";
inline constexpr std::string_view kGenerationKey = "generation";
inline constexpr std::string_view kUpdatingKey = "updating";

/// "object/<name>"; of a snapshot with its prefix before.
std::string object_key(const std::string& prefix, const std::string& name);
/// "snapshot/<g>/".
std::string snapshot_prefix(uint64_t generation);
/// "snapshot/<g>/record".
std::string snapshot_record_key(uint64_t generation);

std::string store_bytes(const CatalogStore& store);
std::string object_bytes(const CatalogObject& object);
std::string generation_bytes(uint64_t generation, int64_t committed_unix_nanoseconds,
                             const std::map<std::string, std::string>& run_state);
std::string updating_bytes(uint64_t next_generation);
/// Its objects have values of their own.
std::string snapshot_bytes(const CatalogSnapshot& snapshot);

/// Puts a catalog together from its keys and values, in any order. Values are treated as hostile.
/// Throws InputError naming `directory` and the key.
class ContentsReader {
 public:
  explicit ContentsReader(std::string directory) : directory_(std::move(directory)) {}

  void add(std::string_view key, std::string_view value);
  /// Once, at the end.
  CatalogContents finish();

 private:
  void read_store(std::string_view value);
  CatalogObject object(std::string_view key, std::string_view value) const;
  void add_to_snapshot(std::string_view key, std::string_view value);

  std::string directory_;
  CatalogContents contents_;
  bool has_store_ = false;
};

}  // namespace headrace::tiers
