#include "aio/profile_catalog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "aio/probe_identity.h"
#include "aio/profile.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::aio {

namespace {

std::string environment_value(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Nothing where there is no such file. IoError where it cannot be read.
std::optional<std::string> content_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) {
    return std::nullopt;
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) {
    throw IoError("cannot read a hardware profile",
                  IoError::Where{.path = path, .error_number = errno});
  }
  return content.str();
}

/// A file that is written under a temporary name; the destructor removes it unless it was renamed.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), temporary_(fmt::format("{}.new-{}", path, ::getpid())) {
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    check(descriptor_ >= 0, "cannot create");
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    if (!renamed_) {
      ::unlink(temporary_.c_str());
    }
  }

  void write(const std::string& content) {
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t length = ::write(descriptor_, content.data() + done, content.size() - done);
      if (length < 0 && errno == EINTR) {
        continue;
      }
      check(length > 0, "cannot write");
      done += static_cast<size_t>(length);
    }
    check(::fsync(descriptor_) == 0, "cannot sync");
  }

  void rename() {
    check(::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename to its final name");
    renamed_ = true;
  }

 private:
  void check(bool good, const char* what) const {
    if (!good) {
      const int number = errno;
      throw IoError(what, IoError::Where{.path = temporary_, .error_number = number});
    }
  }

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

std::string machine_name(const std::string& hostname) {
  return "machine-" + sanitize_key(hostname);
}

}  // namespace

void replace_file(const std::string& path, const std::string& content) {
  NewFile file(path);
  file.write(content);
  file.rename();
}

ProfileCatalog ProfileCatalog::standard() {
  if (const std::string folder = environment_value("HEADRACE_PROFILES"); !folder.empty()) {
    return ProfileCatalog(folder);
  }
  if (const std::string data = environment_value("XDG_DATA_HOME"); !data.empty()) {
    return ProfileCatalog(data + "/headrace/profiles");
  }
  if (const std::string home = environment_value("HOME"); !home.empty()) {
    return ProfileCatalog(home + "/.local/share/headrace/profiles");
  }
  throw InputError(
      "there is no folder for hardware profiles: set HEADRACE_PROFILES, XDG_DATA_HOME or HOME");
}

std::optional<proto::HardwareProfile> ProfileCatalog::read(const std::string& name) const {
  const std::string path = folder_ + "/" + name + ".pb";
  try {
    const std::optional<std::string> content = content_of(path);
    return content ? std::optional(decode_profile(*content, path)) : std::nullopt;
  } catch (const Error& error) {
    log_message_once(LogLevel::warning, "profile " + path,
                     fmt::format("{}; it is ignored: run `headrace probe` again", error.what()));
    return std::nullopt;
  }
}

std::optional<proto::StorageProfile> ProfileCatalog::storage_for(const std::string& path) const {
  return storage_by_key(storage_key(path));
}

std::optional<proto::StorageProfile> ProfileCatalog::storage_by_key(const std::string& key) const {
  const std::optional<proto::HardwareProfile> profile = read(key);
  if (!profile || profile->storage_size() == 0 || profile->storage(0).key() != key) {
    return std::nullopt;
  }
  return profile->storage(0);
}

std::optional<proto::HardwareProfile> ProfileCatalog::machine(const std::string& hostname) const {
  return read(machine_name(hostname));
}

void ProfileCatalog::keep_unreadable(const std::string& path) const {
  const std::optional<std::string> content = content_of(path);
  if (!content) {
    return;
  }
  try {
    static_cast<void>(decode_profile(*content, path));
  } catch (const InputError& error) {
    std::string kept;
    std::error_code failure;
    for (int number = 1; kept.empty() || std::filesystem::exists(kept, failure); ++number) {
      kept = fmt::format("{}.kept-{}", path, number);
    }
    std::filesystem::rename(path, kept, failure);
    if (failure) {
      throw IoError("cannot move an unreadable hardware profile out of the way",
                    IoError::Where{.path = path, .error_number = failure.value()});
    }
    log_message(LogLevel::warning, fmt::format("{}; it is kept as {}", error.what(), kept));
  }
}

std::string ProfileCatalog::write(const std::string& name,
                                  const proto::HardwareProfile& profile) const {
  std::error_code failure;
  std::filesystem::create_directories(folder_, failure);
  if (failure) {
    throw IoError("cannot make the folder of hardware profiles",
                  IoError::Where{.path = folder_, .error_number = failure.value()});
  }
  std::string path = folder_ + "/" + name + ".pb";
  keep_unreadable(path);
  replace_file(folder_ + "/" + name + ".json", to_json(profile));
  replace_file(path, encode_profile(profile));
  return path;
}

std::string ProfileCatalog::store(const proto::StorageProfile& profile) const {
  proto::HardwareProfile file;
  *file.add_storage() = profile;
  return write(profile.key(), file);
}

std::string ProfileCatalog::store_machine(const proto::HardwareProfile& profile) const {
  return write(machine_name(profile.machine().hostname()), profile);
}

}  // namespace headrace::aio
