#include "aio/posix_backend.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace headrace::aio {

namespace {

/// Calls until the call is not interrupted; its value, or -errno.
template <class Call>
int result_of(const Call& call) {
  int result = -1;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : result;
}

/// Whether direct transfers aligned to kDirectAlignment work; where the kernel does not say
/// (before 6.1), an accepted O_DIRECT is taken as a yes.
bool direct_alignment_suffices(int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 ||
      (status.stx_mask & STATX_DIOALIGN) == 0) {
    return true;
  }
  return status.stx_dio_offset_align != 0 && status.stx_dio_offset_align <= kDirectAlignment &&
         status.stx_dio_mem_align <= kDirectAlignment;
#else
  return descriptor >= 0;
#endif
}

}  // namespace

int PosixBackend::open(const std::string& path, bool create, bool direct) {
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0) | (direct ? O_DIRECT : 0);
  const int descriptor = result_of([&] { return ::open(path.c_str(), flags, 0600); });
  if (descriptor >= 0 && direct && !direct_alignment_suffices(descriptor)) {
    ::close(descriptor);
    return -EINVAL;
  }
  return descriptor;
}

int PosixBackend::allocate(int handle, int64_t size) {
  struct stat before {};
  if (::fstat(handle, &before) != 0) {
    return -errno;
  }
  if (size > 0) {
    const int result = result_of([&] { return ::fallocate(handle, 0, 0, size); });
    if (result < 0) {
      // A full file system may have given some of the blocks: release them.
      const int undone = result_of([&] { return ::ftruncate(handle, before.st_size); });
      return undone < 0 && result == -ENOSPC ? undone : result;
    }
  }
  return before.st_size > size ? set_size(handle, size) : 0;
}

int PosixBackend::set_size(int handle, int64_t size) {
  return result_of([&] { return ::ftruncate(handle, size); });
}

int PosixBackend::sync(int handle) {
  return result_of([&] { return ::fdatasync(handle); });
}

int PosixBackend::close(int handle) {
  // Linux has released the descriptor even when close() was interrupted.
  return ::close(handle) == 0 || errno == EINTR ? 0 : -errno;
}

}  // namespace headrace::aio
