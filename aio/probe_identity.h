#pragma once

#include <optional>
#include <string>

#include "aio/drive_wear.h"
#include "base/units.h"

namespace headrace::aio {

/// What the system says about the storage below a folder; texts are empty where it says nothing.
struct StorageIdentity {
  std::string file_system;  ///< "ext4"; a hexadecimal number when unknown
  std::string device;       ///< "nvme0n1", of the whole disk; empty without a block device
  std::string vendor;
  std::string model;
  std::string serial;
  std::string key;     ///< of device and file system: letters, digits, '-', '_', '.'
  int numa_node = -1;  ///< -1: unknown, or the machine has one node
  std::optional<bool> rotational;
  Bytes free_space;
  Wear wear;
};

/// Reads statfs and /sys below `root`; thread-safe. InputError when the folder cannot be used.
StorageIdentity identify_storage(const std::string& folder, const std::string& root = "");

/// The part of identify_storage() that names the profile of a folder's storage.
std::string storage_key(const std::string& folder, const std::string& root = "");

/// Letters, digits, '.', '_' and '-' stay, every run of others becomes one '-'; at most 128
/// characters. Empty where nothing stays.
std::string sanitize_key(const std::string& text);

}  // namespace headrace::aio
