#include "engine/later_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace headrace::engine {

LaterFile::LaterFile(std::string path, const char* what)
    : path_(std::move(path)), what_(what), is_unwanted_(false) {
  std::error_code error;  // what cannot be looked at is taken for somebody's
  const bool is_missing = !std::filesystem::exists(path_, error) && !error;
  open(std::ios::app);
  is_unwanted_ = is_missing;
}

LaterFile::~LaterFile() {
  if (is_unwanted_) {
    ::unlink(path_.c_str());
  }
}

std::ofstream LaterFile::begin() {
  std::ofstream file = open(std::ios::trunc);
  is_unwanted_ = false;
  return file;
}

std::ofstream LaterFile::open(std::ios::openmode mode) const {
  std::ofstream file(path_, std::ios::binary | mode);
  if (!file) {
    throw IoError(what_, {.path = path_, .error_number = errno});
  }
  return file;
}

}  // namespace headrace::engine
