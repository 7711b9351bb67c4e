#include "tiers/data_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "tiers/run_directory.h"

namespace headrace::tiers {

namespace {

constexpr Bytes kBlock{4096};

}  // namespace

DataFiles::DataFiles(Options options, std::shared_ptr<aio::IoEngine> io)
    : options_(std::move(options)), io_(std::move(io)) {}

DataFiles::~DataFiles() {
  for (uint32_t n = 0; n < files_.size(); ++n) {
    try {
      io_->close(files_[n].id);
    } catch (const std::exception& error) {
      log_warning("closing {}: {}", path(n), error.what());
    }
    if (!keep_ && ::unlink(path(n).c_str()) != 0) {
      log_warning("removing {}: {}", path(n), errno_text(errno));
    }
  }
}

void DataFiles::open_existing() {
  HR_CHECK(files_.empty(), "{} files are open already", files_.size());
  keep_ = true;
  for (uint32_t n = 0; std::filesystem::exists(path(n)); ++n) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path(n), error);
    if (error) {
      throw IoError("the size of the file cannot be read",
                    {.path = path(n), .error_number = error.value()});
    }
    File& file = files_.emplace_back();
    file.id = io_->open(path(n), false);
    file.size = Bytes(static_cast<int64_t>(size)) / kBlock.count() * kBlock.count();
    if (file.size > Bytes(0)) {
      file.free.give_back(0, file.size);
    }
  }
}

bool DataFiles::claim(Place place, Bytes length) {
  return place.file < files_.size() && files_[place.file].free.take_at(place.offset, length);
}

void DataFiles::back_with_blocks() {
  for (const File& file : files_) {
    if (file.size > Bytes(0)) {
      io_->allocate(file.id, file.size);
    }
  }
}

void DataFiles::return_free_space() {
  for (uint32_t n = 0; n < files_.size(); ++n) {
    const FileDescriptor file(::open(path(n).c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) {
      log_warning("opening {}: {}", path(n), errno_text(errno));
      continue;
    }
    for (const auto& [offset, length] : files_[n].free.ranges()) {
      // A hint: a file system that cannot do it keeps the blocks.
      if (::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) !=
          0) {
        log_debug("{}: blocks are not given back: {}", path(n), errno_text(errno));
        break;
      }
    }
  }
}

std::optional<DataFiles::Place> DataFiles::take(Bytes length) {
  for (uint32_t n = 0; n < files_.size(); ++n) {
    if (const auto offset = files_[n].free.take(length)) {
      return Place{n, *offset};
    }
  }
  return std::nullopt;
}

void DataFiles::give_back(Place place, Bytes length) {
  files_.at(place.file).free.give_back(place.offset, length);
}

bool DataFiles::grow_for(Bytes length, Bytes at_most) {
  HR_CHECK(length <= options_.file_size_max, "a range of {} bytes in files of at most {}", length,
           options_.file_size_max);
  const auto needed_in = [&](const File& file) {
    return length - file.free.gap_before(file.size.count());
  };
  const bool fits_last =
      !files_.empty() && files_.back().size + needed_in(files_.back()) <= options_.file_size_max;
  if ((fits_last ? needed_in(files_.back()) : length) > at_most) {
    return false;
  }
  if (!fits_last) {
    open_next();
  }
  File& file = files_.back();
  const Bytes needed = needed_in(file);
  const Bytes room = std::min(at_most, options_.file_size_max - file.size);
  const Bytes wanted = std::max(needed, std::min(options_.growth_step, room));
  const Bytes grown = allocate(file.id, file.size, needed, wanted);
  const Bytes spare = options_.prewrite ? grown - needed : Bytes(0);
  file.free.give_back(file.size.count(), grown - spare);
  file.size += grown;
  hold_back(file, spare);
  return true;
}

/// The last `length` bytes of the file.
void DataFiles::hold_back(File& file, Bytes length) {
  if (file.held_begin < file.held_end) {  // of the growth before
    file.free.give_back(file.held_begin, Bytes(file.held_end - file.held_begin));
  }
  file.held_begin = (file.size - length).count();
  file.held_end = file.size.count();
}

std::optional<DataFiles::Piece> DataFiles::begin_piece() {
  for (uint32_t n = 0; n < files_.size(); ++n) {
    File& file = files_[n];
    if (file.held_begin < file.held_end) {
      const Bytes length = std::min(kPieceMax, Bytes(file.held_end - file.held_begin));
      const Piece piece{{n, file.held_begin}, length};
      file.held_begin += length.count();
      return piece;
    }
  }
  return std::nullopt;
}

void DataFiles::end_piece(const Piece& piece) {
  give_back(piece.place, piece.length);
}

bool DataFiles::claim_unwritten() {
  bool any = false;
  for (File& file : files_) {
    any = any || file.held_begin < file.held_end;
    hold_back(file, Bytes(0));
  }
  return any;
}

Bytes DataFiles::allocate(aio::FileId file, Bytes old_size, Bytes needed, Bytes wanted) {
  try {
    io_->allocate(file, old_size + wanted);
    return wanted;
  } catch (const IoError& error) {
    if (error.where().error_number != ENOSPC || needed == wanted) {
      throw;
    }
  }
  io_->allocate(file, old_size + needed);
  return needed;
}

void DataFiles::open_next() {
  const auto number = static_cast<uint32_t>(files_.size());
  files_.push_back({io_->open(path(number), true), Bytes(0), {}});
  sync_directory(options_.directory);
}

Bytes DataFiles::allocated() const {
  Bytes sum;
  for (const File& file : files_) {
    sum += file.size;
  }
  return sum;
}

Bytes DataFiles::free_bytes() const {
  Bytes sum;
  for (const File& file : files_) {
    sum += file.free.free_bytes() + Bytes(file.held_end - file.held_begin);
  }
  return sum;
}

std::string DataFiles::path(uint32_t file) const {
  return fmt::format("{}/data-{}", options_.directory, file);
}

}  // namespace headrace::tiers
