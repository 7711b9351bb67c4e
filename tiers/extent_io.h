#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/io.h"
#include "base/serial_worker.h"
#include "base/units.h"
#include "device/direct_reader.h"
#include "tiers/extent_allocator.h"
#include "tiers/in_flight.h"

namespace headrace::tiers {

/// One written version of an object's value. Its file space is given back when the last holder (the
/// store's tables, a read in flight) lets go of it.
class StoredValue {
 public:
  StoredValue(ExtentAllocator& allocator, std::vector<Extent> extents, Bytes size, bool persistent)
      : allocator_(allocator), extents_(std::move(extents)), size_(size), persistent_(persistent) {}
  StoredValue(const StoredValue&) = delete;
  StoredValue& operator=(const StoredValue&) = delete;
  ~StoredValue() { allocator_.release(extents_); }

  const std::vector<Extent>& extents() const { return extents_; }
  Bytes size() const { return size_; }
  bool is_persistent() const { return persistent_; }

 private:
  friend class ExtentIo;  // sets the checksums
  ExtentAllocator& allocator_;
  std::vector<Extent> extents_;
  Bytes size_;
  bool persistent_;
};
using StoredValueRef = std::shared_ptr<const StoredValue>;

/// What to write and how.
struct WriteRequest {
  std::string name;
  std::span<const std::byte> value;
  bool persistent = false;
  aio::IoClass io_class = aio::IoClass::write_back;
  /// Set: the value goes over this one of the same size, which nobody reads meanwhile. A failed
  /// write leaves it damaged.
  StoredValueRef over = nullptr;
};

/// Moves values between memory and extents: takes space, makes and verifies checksums. Owns the
/// threads for that, so that the I/O engine's thread only hands results on. Thread-safe. The owner
/// waits for all ends before destroying it.
class ExtentIo {
 public:
  /// Both are called once, on a thread of this object.
  using WriteEnd = std::function<void(StoredValueRef, std::exception_ptr)>;
  using ReadEnd = std::function<void(std::exception_ptr)>;

  ExtentIo(ExtentAllocator& allocator, std::shared_ptr<aio::IoEngine> io, bool verify_reads);
  ExtentIo(const ExtentIo&) = delete;
  ExtentIo& operator=(const ExtentIo&) = delete;
  ~ExtentIo();

  void write(WriteRequest request, WriteEnd on_end);
  /// The whole value into `target` of the same size. A checksum that does not match is read a
  /// second time; then the end is an IoError with file, offset and both checksums.
  void read(const std::string& name, StoredValueRef value, std::span<std::byte> target,
            aio::IoClass io_class, ReadEnd on_end);
  /// The same into device memory, and nothing is verified; only where verify_reads is off.
  void read_direct(StoredValueRef value, device::DirectReader& reader, std::span<std::byte> target,
                   ReadEnd on_end);
  /// One extent, always verified; blocks. Throws like read(). `target` holds at least its length,
  /// rounded up to kExtentAlignment.
  void read_extent(const std::string& name, const Extent& extent, std::span<std::byte> target);
  /// Writes an extent anew at its place, syncs and reads it back; blocks. `bytes` must have its
  /// checksum. IoError where it cannot be written or does not hold.
  void rewrite_extent(const std::string& name, const Extent& extent, std::span<std::byte> bytes);

 private:
  struct WriteJob;
  struct ReadJob;
  void start_write(const std::shared_ptr<WriteJob>& job);
  void end_write(WriteJob& job, const std::exception_ptr& error);
  void start_part(const std::shared_ptr<ReadJob>& job, size_t part, int attempt);
  void check_part(const std::shared_ptr<ReadJob>& job, size_t part, int attempt);
  void end_part(ReadJob& job, const std::exception_ptr& error);
  Completion submit(const aio::IoRequest& request);
  /// Goes on with an operation on another thread. The destructor waits until this has returned,
  /// for the operation may have ended by then.
  void go_on(SerialWorker& worker, std::function<void()> task);
  std::exception_ptr mismatch(const std::string& name, const Extent& extent, uint64_t actual) const;

  ExtentAllocator& allocator_;
  std::shared_ptr<aio::IoEngine> io_;
  bool verify_reads_;
  InFlight hand_overs_;
  SerialWorker writer_;  ///< takes space, makes checksums, submits
  SerialWorker
      finisher_;  ///< ends writes: that may wait for the allocator, which may wait for the disk
  SerialWorker checker_;  ///< verifies and ends reads
};

}  // namespace headrace::tiers
