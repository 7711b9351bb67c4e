#pragma once

#include <string>

namespace headrace::tiers {

/// Version of everything in a run directory; docs/formats.md.
inline constexpr int kRunFormatVersion = 1;

/// A file descriptor that is closed with the object. Move-only.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// fsync of a directory: makes new names in it durable.
void sync_directory(const std::string& path);

/// Made from host name, process, time and a count; different for every call.
std::string make_run_id();

/// The folder <parent>/headrace-<run id>/ of a new run with its files LOCK (held as long as this
/// object lives) and RUN. Owns them: the destructor removes them, and the folder if nothing else
/// is left in it, unless keep() was called. Not thread-safe.
class RunDirectory {
 public:
  /// Makes the folder (and its parent where that is missing). InputError when the run id is not
  /// usable, or when the folder exists: it says whether it is in use and by whom, holds an earlier
  /// run, or is not Headrace's. `index` of `count` is the place of this path in the run.
  RunDirectory(const std::string& parent, const std::string& run_id, int index, int count);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  ~RunDirectory();

  const std::string& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  void make_folder(const std::string& parent);
  void take_lock();
  void write_identity(const std::string& run_id, int index, int count);
  void remove() noexcept;

  std::string path_;
  FileDescriptor lock_;
  bool keep_ = false;
};

}  // namespace headrace::tiers
