#include "tests/fake_cuda/checked_memory.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace headrace::device::testing {

namespace {
constexpr int kBanks = 32;
}

void GlobalMemory::check(const void* address, int bytes, bool is_write) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  HR_CHECK(at % static_cast<uintptr_t>(bytes) == 0,
           "misaligned access of {} bytes of global memory", bytes);
  for (const GlobalMatrix& matrix : matrices_) {
    const auto begin = reinterpret_cast<uintptr_t>(matrix.data);
    if (at < begin || (is_write && !matrix.is_writable)) {
      continue;
    }
    const auto offset = static_cast<int64_t>(at - begin);
    if (offset / matrix.pitch < matrix.rows && offset % matrix.pitch + bytes <= matrix.bytes) {
      return;
    }
  }
  HR_CHECK(false, "{} of {} bytes outside of the operands", is_write ? "write" : "read", bytes);
}

SharedMemory::SharedMemory(int64_t bytes)
    : bytes_(static_cast<size_t>(bytes), std::byte{0xff}),
      words_(static_cast<size_t>(bytes / kWord)) {}

std::span<SharedMemory::Word> SharedMemory::words(int64_t at, int bytes, const char* what) {
  HR_CHECK(at >= 0 && at + bytes <= static_cast<int64_t>(words_.size()) * kWord,
           "{} of {} bytes at {} of {} bytes of shared memory", what, bytes, at, bytes_.size());
  HR_CHECK(at % bytes == 0, "misaligned {} of {} bytes at {} of shared memory", what, bytes, at);
  return {&words_[static_cast<size_t>(at / kWord)], static_cast<size_t>(bytes / kWord)};
}

void SharedMemory::claim(Word& word, int64_t at, int thread) const {
  HR_CHECK(!word.is_coming, "shared memory at {} is written while it is copied to", at);
  HR_CHECK(word.written != interval_ || word.writer == thread,
           "race at {} of shared memory: written by {} and {}", at, word.writer, thread);
  HR_CHECK(word.read != interval_ || word.reader == thread,
           "race at {} of shared memory: read by {}, written by {}", at, word.reader, thread);
}

void SharedMemory::read(int64_t at, int bytes, int thread, void* target) {
  for (Word& word : words(at, bytes, "read")) {
    HR_CHECK(!word.is_coming, "shared memory at {} is read before its copy has ended", at);
    HR_CHECK(word.is_set, "shared memory at {} is read, but not set", at);
    HR_CHECK(word.written != interval_ || word.writer == thread,
             "race at {} of shared memory: written by {}, read by {}", at, word.writer, thread);
    word.reader = word.read == interval_ && word.reader != thread ? kMany : thread;
    word.read = interval_;
  }
  std::memcpy(target, &bytes_[static_cast<size_t>(at)], static_cast<size_t>(bytes));
}

void SharedMemory::write(int64_t at, int bytes, int thread, const void* source) {
  for (Word& word : words(at, bytes, "write")) {
    claim(word, at, thread);
    word.written = interval_;
    word.writer = thread;
    word.is_set = true;
  }
  std::memcpy(&bytes_[static_cast<size_t>(at)], source, static_cast<size_t>(bytes));
}

void SharedMemory::begin_copy(int64_t at, int bytes, int thread) {
  for (Word& word : words(at, bytes, "copy")) {
    claim(word, at, thread);
    word.written = interval_;
    word.writer = thread;
    word.is_coming = true;
  }
}

void SharedMemory::end_copy(int64_t at, int bytes, int thread, const void* source) {
  for (Word& word : words(at, bytes, "copy")) {
    word.is_coming = false;
  }
  write(at, bytes, thread, source);
}

void SharedMemory::count_pass(std::span<const int64_t> at, int bytes) {
  // Threads that want the same word share it.
  std::array<std::array<int64_t, kBanks>, kBanks> wanted;
  std::array<int, kBanks> counts{};
  int most = 1;
  for (const int64_t first : at) {
    for (int64_t word = first / kWord; word < (first + bytes) / kWord; ++word) {
      const auto bank = static_cast<size_t>(static_cast<uint64_t>(word) % kBanks);
      const auto end = wanted[bank].begin() + counts[bank];
      if (std::find(wanted[bank].begin(), end, word) == end) {
        *end = word;
        most = std::max(most, ++counts[bank]);
      }
    }
  }
  ++passes_;
  conflicts_ += most - 1;
}

}  // namespace headrace::device::testing
