#include "tiers/extent_allocator.h"

#include <algorithm>
#include <exception>
#include <numeric>

#include "base/check.h"
#include "base/log.h"

namespace headrace::tiers {

namespace {

/// Values up to this size are not cut for the sake of spreading: seeks cost more than they win.
constexpr Bytes kSpreadMin{int64_t{1} << 20};
/// A value is cut in about this many extents per path, which bounds the error of the shares.
constexpr int64_t kExtentsPerPath = 4;
/// Pieces of new space written at once; values cannot use their space for so long.
constexpr int kPiecesInFlight = 8;

Bytes space_of(Bytes length) {
  return align_up(length, kExtentAlignment);
}

}  // namespace

ExtentAllocator::ExtentAllocator(const Options& options, const std::shared_ptr<aio::IoEngine>& io)
    : disk_budget_(options.disk_budget / kExtentAlignment * kExtentAlignment), io_(io) {
  // Small budgets grow in small steps, so that no path takes the share of another one.
  const auto steps = 4 * static_cast<int64_t>(options.directories.size());
  const Bytes step = std::min(options.growth_step, disk_budget_ / steps);
  for (size_t i = 0; i < options.directories.size(); ++i) {
    DataFiles::Options files;
    files.directory = options.directories[i];
    files.growth_step = align_up(step, kExtentAlignment);
    files.prewrite = options.prewrite;
    Path& path = paths_.emplace_back();
    path.files = std::make_unique<DataFiles>(files, io);
    path.weight = options.weights.at(i);
  }
  prewriting_ = options.prewrite;
  if (prewriting_) {
    // Not registered with the engine, which may outlive it.
    zeros_.emplace(DataFiles::kPieceMax, false);
  }
}

ExtentAllocator::~ExtentAllocator() {
  {
    const std::lock_guard lock(mutex_);
    prewriting_ = false;
  }
  in_flight_.wait_for_none();
}

std::vector<Extent> ExtentAllocator::allocate(const std::string& name, Bytes size) {
  std::vector<Extent> extents = allocate_extents(name, size);
  prewrite_pieces();
  return extents;
}

std::vector<Extent> ExtentAllocator::allocate_extents(const std::string& name, Bytes size) {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::vector<Extent> extents;
    try {
      const Bytes piece = extent_length(size);
      for (Bytes left = size; left > Bytes(0); left -= std::min(left, piece)) {
        place(name, std::min(left, piece), extents);
      }
      return extents;
    } catch (...) {
      release_locked(extents);
      if (pieces_in_flight_ == 0) {
        throw;
      }
    }
    // Space that is being written once may be what is missing.
    pieces_ended_.wait(lock, [&] { return pieces_in_flight_ == 0; });
  }
}

void ExtentAllocator::release(const std::vector<Extent>& extents) {
  const std::lock_guard lock(mutex_);
  release_locked(extents);
}

void ExtentAllocator::release_locked(const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    paths_.at(extent.path).files->give_back({extent.file, extent.offset}, space_of(extent.length));
  }
}

Bytes ExtentAllocator::extent_length(Bytes size) const {
  if (paths_.size() == 1) {
    return kExtentMax;
  }
  const Bytes spread = size / (kExtentsPerPath * static_cast<int64_t>(paths_.size()));
  return std::clamp(align_up(spread, kExtentAlignment), kSpreadMin, kExtentMax);
}

/// Paths in the order in which they should take the next extent: weighted fair queueing.
std::vector<size_t> ExtentAllocator::by_next_share(Bytes length) const {
  std::vector<size_t> order(paths_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto share_after = [&](size_t i) {
    return paths_[i].assigned + static_cast<double>(length.count()) / paths_[i].weight;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return share_after(a) < share_after(b); });
  return order;
}

void ExtentAllocator::place(const std::string& name, Bytes length, std::vector<Extent>& extents) {
  std::exception_ptr disk_full;
  const std::vector<size_t> order = by_next_share(length);
  // The path whose turn it is, grown if need be; then gaps elsewhere; then growth elsewhere.
  for (const bool may_grow : {false, true}) {
    for (const size_t path : order) {
      try {
        if (place_on(path, length, may_grow || path == order.front(), extents)) {
          return;
        }
      } catch (const IoError&) {
        disk_full = std::current_exception();
      }
    }
  }
  if (length > kExtentAlignment) {  // scattered gaps may do
    const Bytes half = align_up(length / 2, kExtentAlignment);
    place(name, half, extents);
    if (length > half) {
      place(name, length - half, extents);
    }
    return;
  }
  if (disk_full) {
    std::rethrow_exception(disk_full);
  }
  throw CapacityError(fmt::format(
      "the disk budget of {} is used up: data files hold {} and no free space for object '{}'; "
      "raise it (--nvme-budget, headrace.nvme_budget), or offload less to nvme",
      format_bytes(disk_budget_), format_bytes(allocated()), name));
}

bool ExtentAllocator::place_on(size_t path, Bytes length, bool may_grow,
                               std::vector<Extent>& extents) {
  Path& target = paths_[path];
  const Bytes space = space_of(length);
  auto place = target.files->take(space);
  if (!place && target.files->claim_unwritten()) {
    place = target.files->take(space);
  }
  if (!place && may_grow && target.files->grow_for(space, disk_budget_ - allocated())) {
    place = target.files->take(space);
    HR_CHECK(place.has_value(), "no {} bytes after growth", space);
  }
  if (!place) {
    return false;
  }
  target.assigned += static_cast<double>(length.count()) / target.weight;
  extents.push_back({static_cast<uint32_t>(path), place->file, place->offset, length, 0});
  return true;
}

void ExtentAllocator::mark_written(const std::vector<Extent>& extents) {
  const std::lock_guard lock(mutex_);
  for (const Extent& extent : extents) {
    written_.emplace(extent.path, extent.file);
  }
}

void ExtentAllocator::sync_written() {
  std::set<std::pair<uint32_t, uint32_t>> open;
  std::vector<aio::FileId> ids;
  {
    const std::lock_guard lock(mutex_);
    open.swap(written_);
    for (const auto& [path, file] : open) {
      ids.push_back(paths_[path].files->id(file));
    }
  }
  try {
    for (const aio::FileId id : ids) {
      io_->sync(id);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    written_.merge(open);
    throw;
  }
}

std::optional<ExtentAllocator::PathPiece> ExtentAllocator::begin_piece() {
  const std::lock_guard lock(mutex_);
  if (!prewriting_ || pieces_in_flight_ == kPiecesInFlight) {
    return std::nullopt;
  }
  for (size_t path = 0; path < paths_.size(); ++path) {
    if (const auto piece = paths_[path].files->begin_piece()) {
      ++pieces_in_flight_;
      return PathPiece{path, paths_[path].files->id(piece->place.file), *piece};
    }
  }
  return std::nullopt;
}

void ExtentAllocator::end_piece(const PathPiece& piece, const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  --pieces_in_flight_;
  pieces_ended_.notify_all();
  paths_[piece.path].files->end_piece(piece.piece);
  if (error) {  // whoever writes there next is told
    prewriting_ = false;
    log_debug("space is not written ahead of its use any more: a transfer failed");
  }
}

/// Starts pieces until enough are in flight; each that ends starts the next. Called without the
/// lock, because a completion may end at once.
void ExtentAllocator::prewrite_pieces() {
  while (const auto piece = begin_piece()) {
    in_flight_.begin();
    Completion written = Completion::done();
    try {
      written = io_->submit({.operation = aio::IoOperation::write,
                             .io_class = aio::IoClass::write_back,
                             .file = piece->id,
                             .offset = piece->piece.place.offset,
                             .data = zeros_->data(),
                             .length = piece->piece.length});
    } catch (...) {
      written = Completion::failed(std::current_exception());
    }
    written.on_done([this, piece = *piece](const std::exception_ptr& error) {
      end_piece(piece, error);
      prewrite_pieces();
      in_flight_.end();
    });
  }
}

aio::FileId ExtentAllocator::file_id(const Extent& extent) const {
  const std::lock_guard lock(mutex_);
  return paths_.at(extent.path).files->id(extent.file);
}

std::string ExtentAllocator::file_path(const Extent& extent) const {
  const std::lock_guard lock(mutex_);
  return paths_.at(extent.path).files->path(extent.file);
}

Bytes ExtentAllocator::bytes_on_disk() const {
  const std::lock_guard lock(mutex_);
  return allocated();
}

Bytes ExtentAllocator::allocated() const {
  Bytes sum;
  for (const Path& path : paths_) {
    sum += path.files->allocated();
  }
  return sum;
}

Bytes ExtentAllocator::available() const {
  const std::lock_guard lock(mutex_);
  Bytes sum = std::max(disk_budget_ - allocated(), Bytes(0));
  for (const Path& path : paths_) {
    sum += path.files->free_bytes();
  }
  return sum;
}

void ExtentAllocator::set_keep(bool keep) {
  const std::lock_guard lock(mutex_);
  for (const Path& path : paths_) {
    keep ? path.files->keep() : path.files->remove_on_close();
  }
}

void ExtentAllocator::open_existing() {
  const std::lock_guard lock(mutex_);
  for (const Path& path : paths_) {
    path.files->open_existing();
  }
}

void ExtentAllocator::claim(const std::string& name, const std::vector<Extent>& extents) {
  const std::lock_guard lock(mutex_);
  for (const Extent& extent : extents) {
    if (extent.path >= paths_.size() ||
        !paths_[extent.path].files->claim({extent.file, extent.offset}, space_of(extent.length))) {
      throw InputError(
          fmt::format("the run is damaged: object '{}' should have {} bytes at offset {} of "
                      "data-{} in path {}, "
                      "but that is not in the file or belongs to another object",
                      name, extent.length, extent.offset, extent.file, extent.path));
    }
  }
}

void ExtentAllocator::back_with_blocks() {
  const std::lock_guard lock(mutex_);
  for (const Path& path : paths_) {
    path.files->back_with_blocks();
  }
}

void ExtentAllocator::return_free_space() {
  const std::lock_guard lock(mutex_);
  for (const Path& path : paths_) {
    path.files->return_free_space();
  }
}

}  // namespace headrace::tiers
