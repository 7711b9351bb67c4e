#include "engine/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>

#include "base/error.h"
#include "base/log.h"

namespace headrace::engine {

FolderLock::FolderLock(const std::string& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_.get() < 0) {
    throw IoError("cannot open the output folder", {.path = folder, .error_number = errno});
  }
  if (::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0) {
    return;
  }
  if (errno == EWOULDBLOCK) {
    throw InputError(fmt::format(
        "{} is in use by another Headrace run: choose another output folder, or wait for it",
        folder));
  }
  log_debug("{} cannot be locked: errno {}", folder, errno);  // NFS locks no folders
}

}  // namespace headrace::engine
