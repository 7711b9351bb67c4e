#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headrace {

/// What went wrong, as far as the caller's reaction and the process exit code depend on it.
enum class ErrorKind {
  usage,         ///< wrong command line
  bad_input,     ///< configuration, checkpoint or data that cannot be used
  does_not_fit,  ///< a hard budget is too small
  io,            ///< a transfer or file operation failed
  internal,      ///< a programming error: a broken invariant
  interrupted,   ///< stopped by the user; state was saved
};

/// The system's words for an errno: "No space left on device".
std::string errno_text(int error_number);

/// Exit codes of the `headrace` command: usage 2, bad_input 3, does_not_fit 4, io 5, internal 70,
/// interrupted 130.
int exit_code(ErrorKind kind) noexcept;

/// Base of every exception Headrace throws. The text says what happened, where, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

class UsageError : public Error {
 public:
  explicit UsageError(const std::string& text) : Error(ErrorKind::usage, text) {}
};

/// Configuration, checkpoint or data that cannot be used as it is.
class InputError : public Error {
 public:
  explicit InputError(const std::string& text) : Error(ErrorKind::bad_input, text) {}
};

/// A hard budget (device, host, disk) is too small; the text holds the minimum needed.
class CapacityError : public Error {
 public:
  explicit CapacityError(const std::string& text) : Error(ErrorKind::does_not_fit, text) {}
};

/// A failed, short or corrupted transfer, or a failed file operation.
class IoError : public Error {
 public:
  struct Where {
    std::string path;
    int64_t offset = -1;          ///< bytes from the start of the file; -1 where it has no meaning
    int64_t expected_bytes = -1;  ///< -1 where it has no meaning
    int64_t actual_bytes = -1;
    int error_number = 0;  ///< errno; 0 if the kernel reported none (short transfer, checksum)
  };

  /// `what_happened` is a clause without a full stop; the location and errno text are appended.
  IoError(const std::string& what_happened, Where where);
  const Where& where() const noexcept { return where_; }
  /// Whether the same request may succeed when tried again (EAGAIN, EINTR).
  bool is_retryable() const noexcept;

 private:
  Where where_;
};

class InternalError : public Error {
 public:
  explicit InternalError(const std::string& text) : Error(ErrorKind::internal, text) {}
};

class InterruptedError : public Error {
 public:
  explicit InterruptedError(const std::string& text) : Error(ErrorKind::interrupted, text) {}
};

}  // namespace headrace
