#include "tiers/store.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::tiers {

Store::Store(const ExtentStoreOptions& options, StoreFiles files, std::shared_ptr<aio::IoEngine> io,
             bool is_new)
    : io_(std::move(io)), files_(std::move(files)), keep_(options.keep_on_close || !is_new) {
  extent_io_ = std::make_unique<ExtentIo>(*files_.allocator, io_, options.verify_reads);
  if (!is_new) {
    load();
    files_.set_keep(true);
  }
}

void Store::load() {
  const CatalogContents contents = files_.catalog->read();
  if (contents.store.directories.size() != files_.directories.size()) {
    throw InputError(fmt::format("{}: the catalog is of a run with {} paths, not {}",
                                 files_.paths().front(), contents.store.directories.size(),
                                 files_.directories.size()));
  }
  if (contents.store.directories != files_.paths()) {
    files_.catalog->write_store({contents.store.run_id, files_.paths(), contents.store.weights});
  }
  LoadedGenerations loaded = load_generations(contents, *files_.allocator);
  for (auto& [name, committed] : loaded.committed) {
    Entry& entry = entries_[name];
    entry.latest = committed.value;
    entry.committed = committed;
  }
  snapshots_ = std::move(loaded.snapshots);
  generation_ = contents.generation;
  has_generation_ = contents.has_generation;
  committed_at_ = contents.committed_unix_nanoseconds;
  run_state_ = contents.run_state;
  is_torn_ = contents.updating.has_value();
}

Store::~Store() {
  in_flight_.wait_for_none();
  extent_io_.reset();
  if (!keep_ || is_uncertain_ || !is_changed_) {
    return;  // who only looks changes nothing
  }
  for (auto& [name, entry] : entries_) {
    entry.latest.reset();  // only what is committed stays
  }
  try {
    files_.allocator->return_free_space();
  } catch (const std::exception& error) {
    log_warning("giving free space back: {}", error.what());
  }
}

void Store::remove_on_close() {
  keep_ = false;
  files_.set_keep(false);
}

void Store::check_buffer(const std::string& name, std::span<const std::byte> value) const {
  const auto alignment = static_cast<size_t>(io_->alignment().count());
  HR_CHECK(
      reinterpret_cast<uintptr_t>(value.data()) % alignment == 0 && value.size() % alignment == 0,
      "buffer of object '{}' ({} bytes at {}) is not aligned to {}", name, value.size(),
      static_cast<const void*>(value.data()), alignment);
}

/// Where the bytes of a new value may go over an old one: one that no generation holds, or, in
/// place, the committed one that no snapshot and no reader holds.
StoredValueRef Store::value_to_overwrite(const Entry& entry, Bytes size, bool persistent) const {
  const StoredValueRef& latest = entry.latest;
  if (!persistent || latest == nullptr || !latest->is_persistent() || latest->size() != size) {
    return nullptr;
  }
  const bool is_committed = latest == entry.committed.value;
  const long holders = is_committed ? 2 : 1;
  const bool allowed = !is_committed || in_place_;
  return allowed && latest.use_count() == holders ? latest : nullptr;
}

Completion Store::write(const std::string& name, std::span<const std::byte> value, bool persistent,
                        aio::IoClass io_class) {
  check_buffer(name, value);
  StoredValueRef over;
  bool overwrites_committed = false;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[name];
    HR_CHECK(!entry.writing, "second write of object '{}' while one is in flight", name);
    entry.writing = true;
    over = value_to_overwrite(entry, Bytes(static_cast<int64_t>(value.size())), persistent);
    overwrites_committed = over != nullptr && over == entry.committed.value;
    entry.overwritten = entry.overwritten || overwrites_committed;
  }
  if (overwrites_committed) {
    mark_updating();
  }
  in_flight_.begin();
  const auto end = std::make_shared<Promise>();
  extent_io_->write({name, value, persistent, io_class, std::move(over)},
                    [this, name, end](StoredValueRef stored, const std::exception_ptr& error) {
                      end_write(name, std::move(stored), error);
                      error ? end->set_failed(error) : end->set_done();
                      in_flight_.end();
                    });
  return end->completion();
}

/// Durable before the first byte goes over a committed value.
void Store::mark_updating() {
  const std::lock_guard commit_lock(commit_mutex_);
  if (!is_marked_) {
    change_catalog([&] { files_.catalog->mark_updating(generation_ + 1); });
    is_marked_ = true;
  }
}

void Store::end_write(const std::string& name, StoredValueRef value,
                      const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(name);
  entry.writing = false;
  if (error == nullptr) {
    entry.latest = std::move(value);
  }
  erase_if_unused(name);
}

Completion Store::read(const std::string& name, std::span<std::byte> value, aio::IoClass io_class) {
  check_buffer(name, value);
  StoredValueRef latest = value_to_read(name, value);
  in_flight_.begin();
  const auto end = std::make_shared<Promise>();
  extent_io_->read(name, std::move(latest), value, io_class,
                   [this, end](const std::exception_ptr& error) {
                     error ? end->set_failed(error) : end->set_done();
                     in_flight_.end();
                   });
  return end->completion();
}

Completion Store::read_direct(const std::string& name, device::DirectReader& reader,
                              std::span<std::byte> target) {
  StoredValueRef latest = value_to_read(name, target);
  in_flight_.begin();
  const auto end = std::make_shared<Promise>();
  extent_io_->read_direct(std::move(latest), reader, target,
                          [this, end](const std::exception_ptr& error) {
                            error ? end->set_failed(error) : end->set_done();
                            in_flight_.end();
                          });
  return end->completion();
}

StoredValueRef Store::value_to_read(const std::string& name,
                                    std::span<const std::byte> target) const {
  StoredValueRef latest;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(name);
    HR_CHECK(entry != entries_.end() && entry->second.latest != nullptr,
             "read of object '{}', which was not written", name);
    latest = entry->second.latest;
  }
  HR_CHECK(static_cast<int64_t>(target.size()) == latest->size().count(),
           "read of object '{}' ({} bytes) into {} bytes", name, latest->size(), target.size());
  return latest;
}

bool Store::contains(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(name);
  return entry != entries_.end() && entry->second.latest != nullptr;
}

void Store::discard(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) {
    return;
  }
  HR_CHECK(!entry->second.writing, "discard of object '{}' while it is being written", name);
  entry->second.latest.reset();
  erase_if_unused(name);
}

void Store::erase_if_unused(const std::string& name) {
  const auto entry = entries_.find(name);
  if (is_unused(entry->second)) {
    entries_.erase(entry);
  }
}

bool Store::is_unused(const Entry& entry) {
  return entry.latest == nullptr && entry.committed.value == nullptr && entry.marked == nullptr &&
         !entry.writing;
}

std::unique_ptr<ExtentStore> ExtentStore::create(const ExtentStoreOptions& options,
                                                 std::shared_ptr<aio::IoEngine> io) {
  StoreFiles files = create_store_files(options, io);
  return std::make_unique<Store>(options, std::move(files), std::move(io), true);
}

std::unique_ptr<ExtentStore> ExtentStore::open(const ExtentStoreOptions& options,
                                               std::shared_ptr<aio::IoEngine> io) {
  StoreFiles files = open_store_files(options, io);
  return std::make_unique<Store>(options, std::move(files), std::move(io), false);
}

}  // namespace headrace::tiers
