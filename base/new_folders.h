#pragma once

#include <string>
#include <system_error>
#include <vector>

namespace headrace {

/// Makes a folder and those above it. The ones that were missing are removed again by the
/// destructor, where they are empty: what fails before it has written anything leaves nothing.
class NewFolders {
 public:
  NewFolders() = default;
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;
  ~NewFolders();

  /// An error says why the path is no folder now.
  std::error_code make(const std::string& path);
  /// Whether one was missing.
  bool any() const { return !made_.empty(); }

 private:
  std::vector<std::string> made_;  ///< outermost first
};

}  // namespace headrace
