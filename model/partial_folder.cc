#include "model/partial_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace headrace::model {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const char* what, const std::string& path, int error_number) {
  throw IoError(what, {.path = path, .error_number = error_number});
}

}  // namespace

PartialFolder::PartialFolder(std::string target)
    : target_(std::move(target)), temporary_(fmt::format("{}.partial-{}", target_, ::getpid())) {
  std::error_code error;
  fs::remove_all(temporary_, error);  // of a process that had the number before
  if (error || !fs::create_directory(temporary_, error)) {
    fail("cannot make a folder", temporary_, error.value());
  }
}

PartialFolder::~PartialFolder() {
  if (in_place_) {
    return;
  }
  std::error_code error;
  fs::remove_all(temporary_, error);
  if (error) {
    log_warning("{} is left over and could not be removed: {}", temporary_, error.message());
  }
}

void PartialFolder::rename_to_target() {
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
    return;  // the destructor removes what was there
  }
  const bool cannot_exchange = errno == ENOENT || errno == EINVAL || errno == ENOSYS;
  if (!cannot_exchange) {
    fail("cannot put a folder in place", target_, errno);
  }
  // Nothing is there, or the file system knows no exchange.
  std::error_code error;
  fs::remove_all(target_, error);
  if (error) {
    fail("cannot remove the folder that was there before", target_, error.value());
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail("cannot put a folder in place", target_, errno);
  }
  in_place_ = true;
}

}  // namespace headrace::model
