#pragma once

#include <string>

#include "base/new_folders.h"

namespace headrace::tiers {

/// Version of everything in a run directory; docs/formats.md.
inline constexpr int kRunFormatVersion = 2;

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

/// What the RUN file of a run directory says.
struct RunIdentity {
  int format = 0;
  std::string run_id;
  int index = 0;  ///< of this path among those of the run
  int count = 0;
};

/// Whether the folder is a run directory, of any format.
bool is_run_directory(const std::string& path);
/// InputError where the folder is missing, not Headrace's, or of a format that this program does
/// not read.
RunIdentity read_run_identity(const std::string& path);

/// The folder <parent>/headrace-<run id>/ of a run with its files LOCK (held as long as this object
/// lives) and RUN. Owns a folder that it made: the destructor removes its files, and the folder and
/// the parents made for it if nothing else is left in them, unless keep() was called. Not
/// thread-safe.
class RunDirectory {
 public:
  /// Makes the folder of a new run (and its parent where that is missing). InputError when the run
  /// id is not usable, or when the folder exists: it says whether it is in use and by whom, holds
  /// an earlier run, or is not Headrace's. `index` of `count` is the place of this path in the run.
  RunDirectory(const std::string& parent, const std::string& run_id, int index, int count);
  /// Opens the folder of an earlier run and locks it; it is kept. InputError like
  /// read_run_identity(), or when a living process uses it.
  explicit RunDirectory(const std::string& path);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  ~RunDirectory();

  const std::string& path() const { return path_; }
  int index() const { return index_; }
  void keep() { keep_ = true; }
  /// Undoes keep().
  void remove_on_close() { keep_ = false; }

 private:
  void make_folder(const std::string& parent);
  void take_lock();
  void take_over_lock();
  void write_owner();
  void write_identity(const std::string& run_id, int count);
  void remove() noexcept;

  NewFolders parents_;  ///< removed last
  std::string path_;
  int index_ = 0;
  FileDescriptor lock_;
  bool keep_ = false;
};

}  // namespace headrace::tiers
