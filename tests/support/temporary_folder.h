#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

namespace headrace::test {

/// A fresh folder that is removed with everything in it. `parent` empty: the build folder, which is
/// on a real file system (unlike /tmp on many machines).
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent = HEADRACE_BINARY_DIR) {
    static std::atomic<int> count{0};
    path_ = std::filesystem::path(parent) /
            ("test-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace headrace::test
