#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The memory that a block of an emulated GPU works on. Every access is checked: it must lie
/// within, on a multiple of its size, and for shared memory also come after a write, and not meet
/// another thread's in the same interval between two barriers. InternalError otherwise.
namespace headrace::device::testing {

/// A matrix in global memory that a kernel may read, or also write.
struct GlobalMatrix {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t pitch = 0;  ///< bytes from row to row
  int64_t bytes = 0;  ///< of a row
  bool is_writable = false;
};

class GlobalMemory {
 public:
  explicit GlobalMemory(std::vector<GlobalMatrix> matrices) : matrices_(std::move(matrices)) {}
  void check(const void* address, int bytes, bool is_write) const;

 private:
  std::vector<GlobalMatrix> matrices_;
};

/// Shared memory of one block.
class SharedMemory {
 public:
  explicit SharedMemory(int64_t bytes);

  /// Everything before is seen by everyone after.
  void barrier() { ++interval_; }

  // `thread` of the block; kWarp + w for warp w as a whole.
  static constexpr int kWarp = 1 << 20;
  void read(int64_t at, int bytes, int thread, void* target);
  void write(int64_t at, int bytes, int thread, const void* source);
  /// The target of an asynchronous copy belongs to nobody from its begin to its end.
  void begin_copy(int64_t at, int bytes, int thread);
  void end_copy(int64_t at, int bytes, int thread, const void* source);

  /// Counts what the accesses of one instruction by up to 32 threads cost: `at` are the addresses
  /// of one pass, each of `bytes`.
  void count_pass(std::span<const int64_t> at, int bytes);
  int64_t passes() const { return passes_; }
  /// Passes more because two threads wanted different words of one bank.
  int64_t conflicts() const { return conflicts_; }

 private:
  static constexpr int kWord = 4;
  static constexpr int kNobody = -1;
  static constexpr int kMany = -2;
  struct Word {
    int64_t written = -1;  ///< the interval of the last write
    int64_t read = -1;
    int writer = kNobody;
    int reader = kNobody;
    bool is_set = false;
    bool is_coming = false;
  };

  std::span<Word> words(int64_t at, int bytes, const char* what);
  void claim(Word& word, int64_t at, int thread) const;

  std::vector<std::byte> bytes_;
  std::vector<Word> words_;
  int64_t interval_ = 0;
  int64_t passes_ = 0;
  int64_t conflicts_ = 0;
};

}  // namespace headrace::device::testing
