#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/new_folders.h"
#include "base/units.h"

namespace headrace::model {

/// A regular file opened for reading. Reads are pread calls, so memory stays with the caller's
/// buffers and any number of threads may read. Opening throws InputError with what to do.
class InputFile {
 public:
  explicit InputFile(std::string path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  Bytes size() const { return size_; }
  /// Fills `out` from byte `offset`; IoError on a failed or short read.
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  Bytes size_;
};

/// The text of a small file; InputError if it cannot be opened or is larger than `limit`.
std::string read_text_file(const std::string& path, Bytes limit);

/// A file written under a temporary name beside its target and renamed at the end, front to back
/// or, once each byte, in any order. The destructor removes a file that was not put in place. Every
/// failure is an IoError. One thread at a time.
class OutputFile {
 public:
  /// Reserves `size` bytes where the file system can, so that a full disk is noticed early.
  OutputFile(std::string target, Bytes size);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  const std::string& target() const { return target_; }
  bool is_complete() const { return written_ == size_.count(); }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  /// Syncs the bytes to the disk and closes; the file must have `size` bytes by now.
  void close();
  /// Replaces the target; after close().
  void rename_to_target();

 private:
  std::string target_;
  std::string temporary_;
  Bytes size_;
  int64_t written_ = 0;
  int descriptor_ = -1;
  bool in_place_ = false;
};

/// Writes a file of this content in the place of what is there, by an OutputFile.
void replace_file(const std::string& path, std::string_view content);

/// InputError where `output` is the folder of `model`, which what is written there would replace.
void check_is_elsewhere(const std::string& output, const std::string& model);

/// A folder that exists once this is constructed. Parents are made too; the ones made here are
/// removed again by the destructor, if empty.
class OutputFolder {
 public:
  explicit OutputFolder(std::string path);

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const;
  /// Makes renames in the folder durable.
  void sync() const;
  /// Removes one file if it is there.
  void remove(std::string_view name) const;

 private:
  std::string path_;
  NewFolders made_;
};

}  // namespace headrace::model
