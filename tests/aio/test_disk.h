#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>

#include "aio/engine.h"
#include "aio/simulated_backend.h"
#include "aio/thread_pool_backend.h"
#include "aio/uring_backend.h"
#include "base/error.h"
#include "base/random.h"

namespace headrace::aio {

/// A folder of its own, removed with what is in it.
class TestFolder {
 public:
  explicit TestFolder(const std::string& parent = ::testing::TempDir()) {
    std::string name = parent + "/headrace-aio-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw IoError("mkdtemp failed", IoError::Where{.path = name, .error_number = errno});
    }
    path_ = name;
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Page-aligned memory.
class TestMemory {
 public:
  explicit TestMemory(size_t size) : size_(size) {
    void* const mapped =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw std::bad_alloc();
    }
    data_ = static_cast<std::byte*>(mapped);
  }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  ~TestMemory() { ::munmap(data_, size_); }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

inline void fill_random(std::span<std::byte> memory, uint64_t seed) {
  Random random(seed, 7);
  for (size_t at = 0; at < memory.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random.next_u64();
    std::memcpy(memory.data() + at, &word, std::min(sizeof word, memory.size() - at));
  }
}

inline IoRequest make_request(IoOperation operation, FileId file, int64_t offset,
                              std::span<std::byte> memory) {
  return IoRequest{
      .operation = operation,
      .io_class = operation == IoOperation::read ? IoClass::demand : IoClass::write_back,
      .file = file,
      .offset = offset,
      .data = memory.data(),
      .length = Bytes(static_cast<int64_t>(memory.size()))};
}

/// The IoError that ends `completion`; fails the test when it ends well.
inline IoError error_of(const Completion& completion) {
  try {
    completion.wait();
  } catch (const IoError& error) {
    return error;
  }
  ADD_FAILURE() << "the request ended well";
  return IoError("none", {});
}

inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

/// What the kernel says it has pinned of this process, as with registered buffers (VmPin).
inline Bytes pinned_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmPin:", 0) == 0) {
      return kKiB * std::stoll(line.substr(6));
    }
  }
  throw InternalError("no VmPin in /proc/self/status");
}

/// Why io_uring cannot be used here; empty when it can.
inline std::string uring_refusal() {
  try {
    UringBackend::create(4);
    return "";
  } catch (const IoError& error) {
    return error.what();
  }
}

}  // namespace headrace::aio
