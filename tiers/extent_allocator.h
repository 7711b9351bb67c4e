#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aio/io.h"
#include "base/units.h"
#include "tiers/data_files.h"
#include "tiers/host_memory.h"
#include "tiers/in_flight.h"

namespace headrace::tiers {

/// File space is handed out in multiples of this; also what direct I/O asks for.
inline constexpr Bytes kExtentAlignment{4096};
/// Longer values are cut, so that checksums and transfers of one value overlap.
inline constexpr Bytes kExtentMax{int64_t{16} << 20};

/// A range of a data file that holds a range of one value.
struct Extent {
  uint32_t path = 0;  ///< index of the run directory
  uint32_t file = 0;  ///< n of data-n
  int64_t offset = 0;
  Bytes length;  ///< of the value's bytes; the space taken is this rounded up to kExtentAlignment
  uint64_t checksum = 0;  ///< XXH3 64-bit

  bool operator==(const Extent&) const = default;
};

/// Hands out file space over all paths: cuts values in extents, spreads them by weight, grows the
/// data files within the disk budget. Owns the data files. Thread-safe.
class ExtentAllocator {
 public:
  struct Options {
    std::vector<std::string> directories;  ///< run directories, at least one
    std::vector<double> weights;           ///< same length, all positive
    Bytes disk_budget;
    Bytes growth_step;
    bool prewrite = false;  ///< new space is written once, in the background, ahead of its use
  };
  ExtentAllocator(const Options& options, const std::shared_ptr<aio::IoEngine>& io);
  ExtentAllocator(const ExtentAllocator&) = delete;
  ExtentAllocator& operator=(const ExtentAllocator&) = delete;
  ~ExtentAllocator();

  /// Opens the data files of an earlier run, all of their space free. Before the first use.
  void open_existing();
  /// Takes exactly the space of these extents. InputError if it is not there or taken already.
  void claim(const std::string& name, const std::vector<Extent>& extents);
  /// As DataFiles' functions of these names, for all paths.
  void back_with_blocks();
  void return_free_space();

  /// Space for a value of `size` bytes; not to be called by a callback of the engine with
  /// `prewrite`, because it may wait for transfers. CapacityError (disk budget) or IoError (disk
  /// full); then nothing has been taken. `name` is for messages.
  std::vector<Extent> allocate(const std::string& name, Bytes size);
  void release(const std::vector<Extent>& extents);

  /// Notes that the files of `extents` hold bytes that were not synced.
  void mark_written(const std::vector<Extent>& extents);
  /// fdatasyncs the files noted since the last call; after an IoError they stay noted.
  void sync_written();

  aio::FileId file_id(const Extent& extent) const;
  std::string file_path(const Extent& extent) const;
  Bytes bytes_on_disk() const;
  /// What can still be allocated within the disk budget.
  Bytes available() const;
  Bytes disk_budget() const { return disk_budget_; }
  /// Whether the data files stay after the destructor.
  void set_keep(bool keep);

 private:
  struct Path {
    std::unique_ptr<DataFiles> files;
    double weight = 1;
    double assigned = 0;  ///< bytes placed here so far, divided by the weight
  };
  std::vector<Extent> allocate_extents(const std::string& name, Bytes size);
  Bytes allocated() const;
  Bytes extent_length(Bytes size) const;
  void place(const std::string& name, Bytes length, std::vector<Extent>& extents);
  bool place_on(size_t path, Bytes length, bool may_grow, std::vector<Extent>& extents);
  std::vector<size_t> by_next_share(Bytes length) const;
  void release_locked(const std::vector<Extent>& extents);

  struct PathPiece {
    size_t path = 0;
    aio::FileId id{};
    DataFiles::Piece piece;
  };
  std::optional<PathPiece> begin_piece();
  void end_piece(const PathPiece& piece, const std::exception_ptr& error);
  void prewrite_pieces();

  mutable std::mutex mutex_;
  Bytes disk_budget_;
  std::shared_ptr<aio::IoEngine> io_;
  std::vector<Path> paths_;
  std::set<std::pair<uint32_t, uint32_t>> written_;  // (path, file)

  std::optional<HostMemory> zeros_;  ///< with prewrite; all pieces are written from it
  int pieces_in_flight_ = 0;
  std::condition_variable pieces_ended_;
  bool prewriting_ = false;
  InFlight in_flight_;
};

}  // namespace headrace::tiers
