#pragma once

#include <string>

#include "aio/backend.h"

namespace headrace::aio {

/// The file functions of backends over the operating system's files; a handle is a descriptor.
/// Holds no state; thread-safe.
class PosixBackend : public Backend {
 public:
  /// Mode 0600, close-on-exec. -EINVAL where direct I/O is refused or needs more than
  /// kDirectAlignment.
  int open(const std::string& path, bool create, bool direct) override;
  /// Gives the blocks back when there is not room for all of them.
  int allocate(int handle, int64_t size) override;
  int set_size(int handle, int64_t size) override;
  int sync(int handle) override;
  int close(int handle) override;
};

}  // namespace headrace::aio
