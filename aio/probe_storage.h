#pragma once

#include <string>

#include "base/units.h"

namespace headrace::aio {

/// What the system says about the storage below a folder. Thread-safe functions; InputError when
/// the folder cannot be used.
std::string file_system_of(const std::string& folder);
Bytes free_space_of(const std::string& folder);
/// "vda (vendor model)"; empty where no block device stands behind the folder.
std::string device_of(const std::string& folder);

/// A file without a name: made with a unique one, which is removed at once. Owns its descriptor;
/// path() opens it again while this object lives. Nothing stays behind, even after kill -9.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& folder);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  std::string path() const;
  /// The name it was made with, for messages.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  int descriptor_ = -1;
};

/// Anonymous memory, on huge pages where the system has them.
class HugeMemory {
 public:
  explicit HugeMemory(Bytes size);
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  ~HugeMemory();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace headrace::aio
