#include "base/new_folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace headrace {

namespace fs = std::filesystem;

std::error_code NewFolders::make(const std::string& path) {
  std::error_code error;
  std::vector<std::string> missing;  // innermost first
  for (fs::path at = fs::absolute(path, error).lexically_normal();
       !error && !fs::exists(at, error) && !error; at = at.parent_path()) {
    if (!at.filename().empty()) {
      missing.push_back(at.string());
    }
  }
  if (error) {
    return error;
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (::mkdir(folder->c_str(), 0777) == 0) {
      made_.push_back(*folder);
    } else if (errno != EEXIST) {  // somebody else was faster
      return {errno, std::generic_category()};
    }
  }
  const bool is_folder = fs::is_directory(path, error);
  return error || is_folder ? error : std::make_error_code(std::errc::not_a_directory);
}

NewFolders::~NewFolders() {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    ::rmdir(folder->c_str());  // not empty: files that are wanted, or somebody else's
  }
}

}  // namespace headrace
