#include "base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace headrace {

int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage:
      return 2;
    case ErrorKind::bad_input:
      return 3;
    case ErrorKind::does_not_fit:
      return 4;
    case ErrorKind::io:
      return 5;
    case ErrorKind::internal:
      return 70;
    case ErrorKind::interrupted:
      return 130;
  }
  return 70;
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

namespace {

std::string io_text(const std::string& what_happened, const IoError::Where& where) {
  std::string text = what_happened + ": " + where.path;
  if (where.offset >= 0) {
    text += fmt::format(" at offset {}", where.offset);
  }
  if (where.expected_bytes >= 0) {
    text += fmt::format(", expected {} bytes", where.expected_bytes);
  }
  if (where.actual_bytes >= 0) {
    text += fmt::format(", got {}", where.actual_bytes);
  }
  if (where.error_number != 0) {
    text += fmt::format(" ({})", errno_text(where.error_number));
  }
  return text;
}

}  // namespace

IoError::IoError(const std::string& what_happened, Where where)
    : Error(ErrorKind::io, io_text(what_happened, where)), where_(std::move(where)) {}

bool IoError::is_retryable() const noexcept {
  return where_.error_number == EAGAIN || where_.error_number == EINTR;
}

}  // namespace headrace
