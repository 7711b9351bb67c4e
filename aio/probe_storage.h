#pragma once

#include <span>
#include <string>

#include "base/units.h"

namespace headrace::aio {

/// What the system says about the storage below a folder. Thread-safe functions; InputError when
/// the folder cannot be used.
std::string file_system_of(const std::string& folder);
Bytes free_space_of(const std::string& folder);
/// statfs's identifier, in hexadecimal; empty where the file system has none.
std::string file_system_id_of(const std::string& folder);

/// A file without a name (O_TMPFILE; where that is refused: made with a unique name that is removed
/// at once). Owns its descriptor; path() opens it again while this object lives. Nothing stays
/// behind, even after kill -9.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& folder);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  std::string path() const;
  /// The same for another process of this user.
  std::string path_for_others() const;
  /// For messages: what the user knows.
  const std::string& name() const { return name_; }
  /// Share of the first `size` bytes that are in the page cache. IoError.
  double cached_share(Bytes size) const;
  /// Writes back and drops what the page cache holds of it, as far as the system does.
  void drop_cache() const;

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
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_.count())}; }
  /// Writes every byte: values that no drive compresses or stores once for several blocks. They
  /// depend on the seed alone.
  void fill_random(uint64_t seed = 0);
  /// Bytes per second of copies within it, by one thread and by all, for about `seconds`: the best
  /// of all passes, for other work on the machine only makes them slower. Contents change.
  double copy_rate(double seconds);

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace headrace::aio
