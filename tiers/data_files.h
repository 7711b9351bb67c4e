#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/io.h"
#include "base/units.h"
#include "tiers/free_space_map.h"

namespace headrace::tiers {

/// The data files data-0, data-1, ... of one run directory and the free space in them. Creates,
/// grows (preallocated) and closes them; removes them in the destructor unless keep() was called.
/// Not thread-safe: the extent allocator's lock guards it. Lengths are multiples of 4096.
///
/// Preallocated space is slower to write the first time (the file system notes for every transfer
/// that it holds data now). With `prewrite`, what growth gives beyond the space asked for is first
/// held back and handed out in pieces to be filled with zeros, and becomes free piece by piece. It
/// is a hint: claim_unwritten() frees what is left at once.
class DataFiles {
 public:
  struct Options {
    std::string directory;
    Bytes growth_step;
    Bytes file_size_max{int64_t{1} << 40};  ///< the next file is begun beyond it
    bool prewrite = false;
  };
  struct Place {
    uint32_t file = 0;  ///< n of data-n
    int64_t offset = 0;
  };

  /// A range that nobody uses, to be written once.
  struct Piece {
    Place place;
    Bytes length;
  };
  static constexpr Bytes kPieceMax{int64_t{2} << 20};

  DataFiles(Options options, std::shared_ptr<aio::IoEngine> io);
  DataFiles(const DataFiles&) = delete;
  DataFiles& operator=(const DataFiles&) = delete;
  ~DataFiles();

  /// Opens the files of an earlier run, all of their space free, and keeps them. Before the first
  /// use.
  void open_existing();
  /// Takes exactly this range; false if it is not there or not free.
  bool claim(Place place, Bytes length);
  /// Makes sure that the disk has room for all of the files' space, which return_free_space() may
  /// have given away. IoError (ENOSPC).
  void back_with_blocks();
  /// Gives the blocks of free ranges back to the file system, where it can do that.
  void return_free_space();

  std::optional<Place> take(Bytes length);
  void give_back(Place place, Bytes length);
  /// Makes room for one range of `length` bytes by growing by `growth_step`, or by less where
  /// at_most or the disk are tighter. False if that takes more than `at_most` bytes. IoError
  /// (ENOSPC) when the disk is full; nothing has changed then.
  bool grow_for(Bytes length, Bytes at_most);

  /// The next piece to write; nullopt: none. It becomes free with end_piece().
  std::optional<Piece> begin_piece();
  void end_piece(const Piece& piece);
  /// Frees the space held back that no piece covers; whether there was any.
  bool claim_unwritten();

  Bytes allocated() const;
  Bytes free_bytes() const;
  aio::FileId id(uint32_t file) const { return files_.at(file).id; }
  std::string path(uint32_t file) const;
  void keep() { keep_ = true; }
  /// Undoes keep().
  void remove_on_close() { keep_ = false; }

 private:
  struct File {
    aio::FileId id{};
    Bytes size;
    FreeSpaceMap free;
    int64_t held_begin = 0;  ///< [held_begin, held_end) is held back for pieces
    int64_t held_end = 0;
  };
  void hold_back(File& file, Bytes length);
  /// Grows to `wanted` more bytes, or to `needed` if the disk has no room for that.
  Bytes allocate(aio::FileId file, Bytes old_size, Bytes needed, Bytes wanted);
  void open_next();

  Options options_;
  std::shared_ptr<aio::IoEngine> io_;
  std::vector<File> files_;
  bool keep_ = false;
};

}  // namespace headrace::tiers
