#pragma once

#include <string>

#include "tiers/run_directory.h"

namespace headrace::engine {

/// Keeps other Headrace processes from writing into an output folder as long as it lives. Where the
/// file system has no such locks, it does nothing.
class FolderLock {
 public:
  /// Throws InputError where another process has the folder.
  explicit FolderLock(const std::string& folder);

 private:
  tiers::FileDescriptor folder_;
};

}  // namespace headrace::engine
