#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aio/backend.h"
#include "base/random.h"

namespace headrace::aio {

/// How a simulated disk behaves; rates are shares of the parts, 0 to 1.
struct SimulatedDiskOptions {
  uint64_t seed = 1;
  Bytes capacity{int64_t{1} << 50};  ///< over all files, by their length; then ENOSPC
  int64_t delay_us_max = 0;          ///< a part takes up to this long
  bool reorder = false;              ///< parts that are ready end in random order
  double short_rate = 0;             ///< transfer some of their bytes, whole blocks of 4096
  double retry_rate = 0;             ///< fail with EAGAIN
  double corrupt_rate = 0;           ///< reads that return one wrong bit
  bool refuse_direct = false;        ///< open with direct I/O: EINVAL
  bool refuse_allocate = false;      ///< allocate: EOPNOTSUPP
  bool refuse_registration = false;  ///< of memory and files
};

/// A fault on command: of the parts of `operation`, `skip` pass, then `count` are hit.
struct SimulatedFault {
  IoOperation operation = IoOperation::read;
  int64_t skip = 0;
  int64_t count = 1;
  int error_number = 0;         ///< fail with this; 0: none
  int64_t transfer_bytes = -1;  ///< transfer only so many bytes; -1: all
  bool corrupt = false;         ///< flip one bit: of what is read, or of what is stored
};

/// A seeded in-memory disk: files by path, faults, and a crash that loses part of what was not
/// synced. Outlives the engines over it. Thread-safe.
class SimulatedDisk {
 public:
  explicit SimulatedDisk(const SimulatedDiskOptions& options);

  /// Adds a fault; several work side by side, the first that fits a part hits it.
  void inject(const SimulatedFault& fault);
  /// Parts wait until release().
  void hold();
  void release();
  /// The device is pulled out: from here on everything fails with ENODEV, but close().
  void remove();
  /// Power loss: each block written since the last sync of its file may fall back to its old
  /// value. Close engines first.
  void crash();
  /// The parts served so far, in order.
  std::vector<PartRequest> history() const;
  const SimulatedDiskOptions& options() const { return options_; }

  // For the backend; results as in Backend.
  int open(const std::string& path, bool create, bool direct);
  int allocate(int handle, int64_t size);
  int set_size(int handle, int64_t size);
  int sync(int handle);
  int close(int handle);
  int32_t transfer(const PartRequest& part);
  std::chrono::microseconds draw_delay();
  uint64_t draw_below(uint64_t bound);
  bool is_held() const;
  /// Waits until `due` has come and nothing is held, or until `woken`, which it clears.
  void await(std::chrono::steady_clock::time_point due, bool& woken);
  void signal(bool& woken);

 private:
  static constexpr int64_t kBlock = 4096;
  using Block = std::array<std::byte, kBlock>;
  struct File {
    int64_t size = 0;
    std::map<int64_t, Block> blocks;    ///< absent: zeros
    std::map<int64_t, Block> unsynced;  ///< values at the last sync of blocks written since
  };
  struct Handle {
    std::shared_ptr<File> file;
    bool direct = false;
  };

  File* find(int handle);
  int grow(File& file, int64_t size);
  int64_t read(const File& file, const PartRequest& part, int64_t length) const;
  int64_t write(File& file, const PartRequest& part, int64_t length);
  SimulatedFault draw_fault(const PartRequest& part);
  bool happens(double rate);

  const SimulatedDiskOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Random random_;
  bool held_ = false;
  bool removed_ = false;
  std::map<std::string, std::shared_ptr<File>> files_;
  std::map<int, Handle> handles_;
  int next_handle_ = 0;
  std::vector<SimulatedFault> faults_;
  std::vector<PartRequest> history_;
};

}  // namespace headrace::aio
