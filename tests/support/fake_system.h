#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace headrace::test {

/// A made-up /proc and /sys below a folder of its own.
class FakeSystem {
 public:
  /// Writes a file; `path` begins with a slash.
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return root_.path(); }

 private:
  TemporaryFolder root_;
};

}  // namespace headrace::test
