#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "aio/io.h"

namespace headrace::aio {

/// How a part ended badly; `error_number` 0 means that it came to an early end.
struct FailedTransfer {
  IoOperation operation = IoOperation::read;
  std::string path;
  int64_t offset = 0;  ///< of the part
  int64_t expected_bytes = 0;
  int64_t actual_bytes = 0;
  int error_number = 0;
};

/// An IoError that says what happened and, where it can, what to do.
std::exception_ptr make_transfer_error(const FailedTransfer& transfer);

}  // namespace headrace::aio
