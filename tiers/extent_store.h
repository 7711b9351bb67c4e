#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/io.h"
#include "base/completion.h"
#include "base/units.h"

namespace headrace::tiers {

struct ExtentStoreOptions {
  /// One or more folders; the first holds the catalog. Each gets its own run directory
  /// <path>/headrace-<run id>/ with a lock file.
  std::vector<std::string> paths;
  std::string run_id;  ///< empty: made from host, pid and time
  /// Share of the data per path (any positive scale); empty: equal.
  std::vector<double> weights;
  Bytes disk_budget;           ///< over all paths; CapacityError beyond it
  Bytes growth_step{1 << 28};  ///< data files grow (preallocated) by this
  /// New space is written once, in the background, ahead of its use: the first write to space that
  /// is only preallocated is slower.
  bool prewrite = false;
  bool verify_reads = true;
  bool keep_on_close = false;  ///< false: the run directories are removed in the destructor
};

/// Files of one run that hold object values as checksummed extents, with a RocksDB catalog. A
/// write always goes to fresh extents; the last committed value stays readable on disk until
/// commit() makes the new ones current. Owns its directories and lock; all functions are
/// thread-safe. Buffers must be aligned and sized to io alignment. Errors: IoError, CapacityError
/// (disk budget), InputError (directory in use or not ours).
class ExtentStore {
 public:
  static std::unique_ptr<ExtentStore> create(const ExtentStoreOptions& options,
                                             std::shared_ptr<aio::IoEngine> io);
  virtual ~ExtentStore() = default;

  /// Writes a whole value under `name`. `persistent` values take part in commits; others are
  /// scratch and are forgotten by a crash. One write per name at a time.
  virtual Completion write(const std::string& name, std::span<const std::byte> value,
                           bool persistent, aio::IoClass io_class) = 0;
  /// Reads the latest written value; its size must be value.size(). Checksums are verified as
  /// configured: a mismatch fails with an IoError naming file and offset.
  virtual Completion read(const std::string& name, std::span<std::byte> value,
                          aio::IoClass io_class) = 0;
  virtual bool contains(const std::string& name) const = 0;
  /// Frees the extents of a scratch value.
  virtual void discard(const std::string& name) = 0;

  /// Makes all persistent values written so far the committed generation: data files synced, then
  /// one synced catalog batch with `run_state`. Frees what the previous generation alone held.
  virtual void commit(uint64_t generation, const std::map<std::string, std::string>& run_state) = 0;
  virtual uint64_t generation() const = 0;
  /// Takes back what has been written to persistent values since the last commit: read() gives the
  /// committed values again. No write may be in flight.
  virtual void roll_back() = 0;

  /// Checks the checksum of every committed extent; returns sentences naming what is bad.
  virtual std::vector<std::string> verify() = 0;

  virtual Bytes bytes_on_disk() const = 0;
  virtual std::vector<std::string> directories() const = 0;
};

}  // namespace headrace::tiers
