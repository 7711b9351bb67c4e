#include "aio/probe_identity.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cctype>
#include <charconv>
#include <filesystem>

#include "aio/probe_storage.h"
#include "base/process.h"
#include "base/system_file.h"

namespace headrace::aio {

namespace {

constexpr size_t kKeyLength = 128;

/// The first of several files that says something.
std::string first_of(const std::filesystem::path& folder,
                     std::initializer_list<const char*> files) {
  for (const char* name : files) {
    std::string line = first_line_of(folder / name);
    if (!line.empty()) {
      return line;
    }
  }
  return "";
}

/// The folder in /sys of the whole disk behind `folder`; empty where there is none.
std::filesystem::path disk_folder(const std::string& folder, const std::string& root) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) {
    return {};
  }
  const std::filesystem::path link =
      fmt::format("{}/sys/dev/block/{}:{}", root, major(status.st_dev), minor(status.st_dev));
  std::error_code missing;
  const std::filesystem::path device = std::filesystem::canonical(link, missing);
  if (missing) {
    return {};
  }
  const bool is_partition = std::filesystem::exists(device / "partition", missing);
  return is_partition ? device.parent_path() : device;
}

/// The nearest numa_node above a device; -1 where none is told.
int numa_node_of(const std::filesystem::path& disk, const std::string& root) {
  const std::filesystem::path top = root + "/sys";
  for (std::filesystem::path at = disk; at.has_relative_path() && at != top;
       at = at.parent_path()) {
    const std::string line = first_of(at, {"numa_node", "device/numa_node"});
    int node = -1;
    if (!line.empty() &&
        std::from_chars(line.data(), line.data() + line.size(), node).ec == std::errc()) {
      return node;
    }
  }
  return -1;
}

/// Model and serial number name the drive, the file system's identifier the partition. Serial
/// numbers of virtual disks repeat, so all that is known takes part.
std::string key_of(const StorageIdentity& identity, const std::string& folder) {
  std::string text;
  const auto add = [&](const std::string& part) {
    const std::string clean = sanitize_key(part);
    text += (text.empty() || clean.empty() ? "" : "-") + clean;
  };
  add(identity.model);
  add(identity.serial);
  add(identity.file_system);
  const std::string file_system_id = file_system_id_of(folder);
  if (!file_system_id.empty()) {
    add(file_system_id);
  } else if (identity.serial.empty()) {
    add(host_name());
    add(identity.device.empty() ? folder : identity.device);
  }
  return sanitize_key(text);
}

StorageIdentity identify_without_wear(const std::string& folder, const std::string& root) {
  StorageIdentity identity;
  identity.file_system = file_system_of(folder);
  identity.free_space = free_space_of(folder);
  const std::filesystem::path disk = disk_folder(folder, root);
  if (!disk.empty()) {
    identity.device = disk.filename().string();
    identity.vendor = first_line_of(disk / "device/vendor");
    identity.model = first_of(disk, {"device/model", "dm/name", "md/level"});
    identity.serial =
        first_of(disk, {"serial", "device/serial", "wwid", "device/wwid", "dm/uuid", "md/uuid"});
    identity.numa_node = numa_node_of(disk, root);
    const std::string rotational = first_line_of(disk / "queue/rotational");
    if (!rotational.empty()) {
      identity.rotational = rotational == "1";
    }
  }
  identity.key = key_of(identity, folder);
  return identity;
}

}  // namespace

std::string sanitize_key(const std::string& text) {
  std::string key;
  for (const char sign : text) {
    const auto code = static_cast<unsigned char>(sign);
    const bool stays = code < 0x80 && (std::isalnum(code) != 0 || sign == '.' || sign == '_');
    if (stays) {
      key += sign;
    } else if (!key.empty() && key.back() != '-') {
      key += '-';
    }
  }
  key.resize(std::min(key.size(), kKeyLength));
  while (!key.empty() && key.back() == '-') {
    key.pop_back();
  }
  const size_t begin = key.find_first_not_of(".-");  // no hidden files
  return begin == std::string::npos ? "" : key.substr(begin);
}

StorageIdentity identify_storage(const std::string& folder, const std::string& root) {
  StorageIdentity identity = identify_without_wear(folder, root);
  identity.wear = read_wear(identity.device);
  return identity;
}

std::string storage_key(const std::string& folder, const std::string& root) {
  return identify_without_wear(folder, root).key;
}

}  // namespace headrace::aio
