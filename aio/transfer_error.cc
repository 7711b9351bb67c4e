#include "aio/transfer_error.h"

#include <cerrno>

#include "base/error.h"

namespace headrace::aio {

namespace {

std::string what_happened(const FailedTransfer& transfer) {
  const bool read = transfer.operation == IoOperation::read;
  const std::string verb = read ? "read" : "write";
  switch (transfer.error_number) {
    case 0:
      return read ? "read came to an early end, the file is shorter than expected"
                  : "write came to an early end";
    case ENOSPC:
    case EDQUOT:
      return "write failed, no space left: free some or use another path";
    case EIO:
      return verb + " failed, the device reported an error: see the kernel log";
    case EINVAL:
      return verb + " failed, the file system refused the transfer (offset, length or direct I/O)";
    case EBADF:
      return verb + " failed, the file was closed by someone else";
    case ENODEV:
    case ENXIO:
      return verb + " failed, the device is gone: check the drive and its connection";
    case EFBIG:
      return "write failed, beyond the largest file size of the file system or the file size limit";
    case EAGAIN:
    case EINTR:
      return verb + " failed, the kernel asked to try again too many times";
    default:
      return verb + " failed";
  }
}

}  // namespace

std::exception_ptr make_transfer_error(const FailedTransfer& transfer) {
  return std::make_exception_ptr(
      IoError(what_happened(transfer), IoError::Where{.path = transfer.path,
                                                      .offset = transfer.offset,
                                                      .expected_bytes = transfer.expected_bytes,
                                                      .actual_bytes = transfer.actual_bytes,
                                                      .error_number = transfer.error_number}));
}

}  // namespace headrace::aio
