#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/io.h"
#include "base/completion.h"
#include "base/units.h"
#include "device/direct_reader.h"
#include "tiers/generations.h"
#include "tiers/value_reader.h"

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
  /// The run directories stay after the destructor once a generation was committed; false: they are
  /// removed. Those of an earlier run always stay, unless remove_on_close() was called.
  bool keep_on_close = false;
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
  /// Opens the run `run_id` in `paths`, which may be in another order, or lie elsewhere, than when
  /// it was made. What was not committed is gone, its space free. InputError where the run is not
  /// there, not whole, in use, of another format, or damaged.
  static std::unique_ptr<ExtentStore> open(const ExtentStoreOptions& options,
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
  /// The same into device memory, past the host, which cannot verify it: only with verify_reads
  /// off. `target` lies in the reader's memory.
  virtual Completion read_direct(const std::string& name, device::DirectReader& reader,
                                 std::span<std::byte> target) = 0;
  virtual bool contains(const std::string& name) const = 0;
  /// Frees the extents of a scratch value.
  virtual void discard(const std::string& name) = 0;

  /// Makes all persistent values written so far the committed generation: data files synced, then
  /// one synced catalog batch with `run_state`. Frees what the previous generation alone held.
  virtual void commit(uint64_t generation, const std::map<std::string, std::string>& run_state) = 0;
  virtual uint64_t generation() const = 0;
  virtual bool has_generation() const = 0;
  /// From now on new values go over the committed ones of the same size, unless a snapshot has
  /// them: half the space, but a process that is killed between the first of them and the next
  /// commit leaves a generation that is not whole (is_torn()).
  virtual void set_in_place(bool in_place) = 0;
  /// The store was opened and its committed generation was being overwritten when its process
  /// ended: only its snapshots can be used, until restore().
  virtual bool is_torn() const = 0;
  /// The persistent values as they are now become those that roll_back() returns to. They stay on
  /// disk until the next mark().
  virtual void mark() = 0;
  /// Takes back what has been written to persistent values since the last mark(): read() gives the
  /// values of then again. Not while a write is in flight, nor where values are written in place.
  virtual void roll_back() = 0;

  /// All generations, by number.
  virtual std::vector<GenerationInfo> generations() const = 0;
  /// A value of a snapshot or, without `generation`, of the committed generation; whatever has been
  /// written since. InputError if there is none of this name.
  virtual std::unique_ptr<ValueReader> open_value(std::optional<uint64_t> generation,
                                                  const std::string& name) = 0;

  /// Keeps the committed generation as a snapshot: no data is copied, but from now on it takes
  /// space of its own. With `keep_last` > 0, the oldest automatic ones beyond that number are
  /// deleted in the same moment. Not while values are being written in place: right after a commit.
  /// CapacityError where the disk budget would leave no room for the
  /// next step.
  virtual void take_snapshot(bool is_automatic, int64_t keep_last) = 0;
  /// Its space is free afterwards. InputError if there is none.
  virtual void delete_snapshot(uint64_t generation) = 0;
  /// Makes a snapshot the committed generation again. The present one, and what was written since,
  /// is gone unless it is a snapshot too. InputError if there is none.
  virtual void restore(uint64_t generation) = 0;

  /// Checks the checksum of every extent of all generations.
  using Progress = std::function<void(Bytes done, Bytes total)>;
  virtual std::vector<Damage> verify(const Progress& progress) = 0;
  /// Writes damaged extents anew where their bytes can be had from elsewhere in the run, or from
  /// `guess` (may be empty); see repair_extents(). Not while anything is written.
  virtual std::vector<Repair> repair(const std::vector<Damage>& damage, const Guess& guess) = 0;
  /// Makes sure that the file system still has the blocks for the files' free space, which a closed
  /// run gave back; before the first write to an opened run. IoError (ENOSPC).
  virtual void prepare_for_writing() = 0;
  /// The run directories are removed by the destructor.
  virtual void remove_on_close() = 0;

  virtual Bytes bytes_on_disk() const = 0;
  virtual std::vector<std::string> directories() const = 0;
};

}  // namespace headrace::tiers
