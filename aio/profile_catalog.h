#pragma once

#include <optional>
#include <string>

#include "proto/profile.pb.h"

namespace headrace::aio {

/// The folder of hardware profiles: `<key>.pb` and `<key>.json` per storage device,
/// `machine-<hostname>.pb` and `.json` per machine. Files that are damaged or of a newer format are
/// named in a warning and ignored. Holds no state but the folder's name; thread-safe.
class ProfileCatalog {
 public:
  explicit ProfileCatalog(std::string folder) : folder_(std::move(folder)) {}

  /// $HEADRACE_PROFILES, else $XDG_DATA_HOME/headrace/profiles, else
  /// $HOME/.local/share/headrace/profiles; InputError where none of them is set.
  static ProfileCatalog standard();

  const std::string& folder() const { return folder_; }

  /// What was stored for the storage below a folder.
  std::optional<proto::StorageProfile> storage_for(const std::string& path) const;
  std::optional<proto::StorageProfile> storage_by_key(const std::string& key) const;
  std::optional<proto::HardwareProfile> machine(const std::string& hostname) const;

  /// Replaces the profile of the same device or machine; makes the folder where it is missing. A
  /// damaged or newer file of that name is kept beside it as `<name>.kept-<n>`, with a warning.
  /// The path of the .pb file. IoError.
  std::string store(const proto::StorageProfile& profile) const;
  std::string store_machine(const proto::HardwareProfile& profile) const;

 private:
  std::optional<proto::HardwareProfile> read(const std::string& name) const;
  std::string write(const std::string& name, const proto::HardwareProfile& profile) const;
  void keep_unreadable(const std::string& path) const;

  std::string folder_;
};

/// Writes a file under a temporary name in the same folder, syncs it and renames it. IoError.
void replace_file(const std::string& path, const std::string& content);

}  // namespace headrace::aio
