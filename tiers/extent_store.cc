#include "tiers/extent_store.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "tiers/catalog.h"
#include "tiers/extent_io.h"
#include "tiers/host_memory.h"
#include "tiers/in_flight.h"
#include "tiers/run_directory.h"

namespace headrace::tiers {

namespace {

/// Throws InputError where the options cannot be used.
void check_options(const ExtentStoreOptions& options) {
  if (options.paths.empty()) {
    throw InputError("offload to nvme needs at least one path (nvme_path)");
  }
  std::set<std::string> seen;
  for (const std::string& path : options.paths) {
    if (path.empty() || !seen.insert(std::filesystem::weakly_canonical(path)).second) {
      throw InputError(fmt::format("nvme path '{}' is empty or given twice", path));
    }
  }
  if (!options.weights.empty() && options.weights.size() != options.paths.size()) {
    throw InputError(
        fmt::format("{} nvme paths, but {} weights", options.paths.size(), options.weights.size()));
  }
  for (const double weight : options.weights) {
    if (!std::isfinite(weight) || weight <= 0) {
      throw InputError(fmt::format("weight {} of an nvme path must be above 0", weight));
    }
  }
  if (options.disk_budget < kExtentAlignment || options.growth_step < kExtentAlignment) {
    throw InputError(fmt::format("disk budget ({}) and growth step ({}) must be at least {}",
                                 format_bytes(options.disk_budget),
                                 format_bytes(options.growth_step),
                                 format_bytes(kExtentAlignment)));
  }
}

class Store final : public ExtentStore {
 public:
  Store(const ExtentStoreOptions& options, std::shared_ptr<aio::IoEngine> io);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() override;

  Completion write(const std::string& name, std::span<const std::byte> value, bool persistent,
                   aio::IoClass io_class) override;
  Completion read(const std::string& name, std::span<std::byte> value,
                  aio::IoClass io_class) override;
  bool contains(const std::string& name) const override;
  void discard(const std::string& name) override;
  void commit(uint64_t generation, const std::map<std::string, std::string>& run_state) override;
  uint64_t generation() const override;
  void roll_back() override;
  std::vector<std::string> verify() override;
  Bytes bytes_on_disk() const override { return allocator_->bytes_on_disk(); }
  std::vector<std::string> directories() const override;

 private:
  struct Entry {
    StoredValueRef latest;     ///< what read() gives; null: discarded or not yet written
    StoredValueRef committed;  ///< what the catalog describes
    bool writing = false;
  };
  /// The committed value of each changed name after a commit; null: it is no more.
  using Changes = std::map<std::string, StoredValueRef>;

  void make_directories(const ExtentStoreOptions& options);
  void check_buffer(const std::string& name, std::span<const std::byte> value) const;
  void end_write(const std::string& name, StoredValueRef value, const std::exception_ptr& error);
  Changes changes() const;
  void erase_if_unused(const std::string& name);

  // Each of these uses those above it: they go down in reverse order.
  std::shared_ptr<aio::IoEngine> io_;
  std::vector<std::unique_ptr<RunDirectory>> directories_;
  std::unique_ptr<ExtentAllocator> allocator_;
  std::unique_ptr<Catalog> catalog_;
  std::mutex commit_mutex_;  ///< one commit at a time; taken before mutex_
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  uint64_t generation_ = 0;
  InFlight in_flight_;
  std::unique_ptr<ExtentIo> extent_io_;
};

Store::Store(const ExtentStoreOptions& options, std::shared_ptr<aio::IoEngine> io)
    : io_(std::move(io)) {
  const std::string run_id = options.run_id.empty() ? make_run_id() : options.run_id;
  const int count = static_cast<int>(options.paths.size());
  for (int i = 0; i < count; ++i) {
    directories_.push_back(std::make_unique<RunDirectory>(
        std::filesystem::absolute(options.paths[static_cast<size_t>(i)]).lexically_normal(), run_id,
        i, count));
  }
  std::vector<double> weights = options.weights;
  weights.resize(options.paths.size(), 1.0);
  allocator_ = std::make_unique<ExtentAllocator>(
      ExtentAllocator::Options{directories(), weights, options.disk_budget, options.growth_step,
                               options.prewrite},
      io_);
  catalog_ = std::make_unique<Catalog>(directories_.front()->path() + "/catalog",
                                       CatalogStore{run_id, directories(), weights});
  extent_io_ = std::make_unique<ExtentIo>(*allocator_, io_, options.verify_reads);
  if (options.keep_on_close) {
    catalog_->keep();
    allocator_->keep();
    for (const auto& directory : directories_) {
      directory->keep();
    }
  }
}

Store::~Store() {
  in_flight_.wait_for_none();
}

void Store::check_buffer(const std::string& name, std::span<const std::byte> value) const {
  const auto alignment = static_cast<size_t>(io_->alignment().count());
  HR_CHECK(
      reinterpret_cast<uintptr_t>(value.data()) % alignment == 0 && value.size() % alignment == 0,
      "buffer of object '{}' ({} bytes at {}) is not aligned to {}", name, value.size(),
      static_cast<const void*>(value.data()), alignment);
}

Completion Store::write(const std::string& name, std::span<const std::byte> value, bool persistent,
                        aio::IoClass io_class) {
  check_buffer(name, value);
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[name];
    HR_CHECK(!entry.writing, "second write of object '{}' while one is in flight", name);
    entry.writing = true;
  }
  in_flight_.begin();
  const auto end = std::make_shared<Promise>();
  extent_io_->write({name, value, persistent, io_class},
                    [this, name, end](StoredValueRef stored, const std::exception_ptr& error) {
                      end_write(name, std::move(stored), error);
                      error ? end->set_failed(error) : end->set_done();
                      in_flight_.end();
                    });
  return end->completion();
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
  StoredValueRef latest;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(name);
    HR_CHECK(entry != entries_.end() && entry->second.latest != nullptr,
             "read of object '{}', which was not written", name);
    latest = entry->second.latest;
  }
  HR_CHECK(static_cast<int64_t>(value.size()) == latest->size().count(),
           "read of object '{}' ({} bytes) into {} bytes", name, latest->size(), value.size());
  in_flight_.begin();
  const auto end = std::make_shared<Promise>();
  extent_io_->read(name, std::move(latest), value, io_class,
                   [this, end](const std::exception_ptr& error) {
                     error ? end->set_failed(error) : end->set_done();
                     in_flight_.end();
                   });
  return end->completion();
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
  if (entry->second.latest == nullptr && entry->second.committed == nullptr &&
      !entry->second.writing) {
    entries_.erase(entry);
  }
}

Store::Changes Store::changes() const {
  Changes changes;
  for (const auto& [name, entry] : entries_) {
    const bool is_persistent = entry.latest != nullptr && entry.latest->is_persistent();
    const StoredValueRef next = is_persistent ? entry.latest : nullptr;
    if (next != entry.committed) {
      changes.emplace(name, next);
    }
  }
  return changes;
}

void Store::commit(uint64_t generation, const std::map<std::string, std::string>& run_state) {
  const std::lock_guard commit_lock(commit_mutex_);
  Changes changed;
  {
    const std::lock_guard lock(mutex_);
    HR_CHECK(generation >= generation_, "commit of generation {} after {}", generation,
             generation_);
    changed = changes();
  }
  allocator_->sync_written();
  CatalogChange change{generation, run_state, {}, {}};
  for (const auto& [name, value] : changed) {
    if (value == nullptr) {
      change.removed.push_back(name);
    } else {
      change.written[name] = {value->size(), generation, value->extents()};
    }
  }
  catalog_->commit(change);
  const std::lock_guard lock(mutex_);
  generation_ = generation;
  for (auto& [name, value] : changed) {
    Entry& entry = entries_[name];
    std::swap(entry.committed, value);  // `changed` frees the superseded ones at the end
    erase_if_unused(name);
  }
}

uint64_t Store::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void Store::roll_back() {
  std::vector<StoredValueRef> dropped;  // freed when the lock is no more held
  const std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    HR_CHECK(!entry.writing, "roll back while object '{}' is being written", it->first);
    const bool is_scratch = entry.latest != nullptr && !entry.latest->is_persistent();
    if (!is_scratch) {
      dropped.push_back(std::exchange(entry.latest, entry.committed));
    }
    it = entry.latest == nullptr ? entries_.erase(it) : std::next(it);
  }
}

std::vector<std::string> Store::verify() {
  std::map<std::string, StoredValueRef> committed;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      if (entry.committed != nullptr) {
        committed.emplace(name, entry.committed);
      }
    }
  }
  Bytes longest = kExtentAlignment;
  for (const auto& [name, value] : committed) {
    for (const Extent& extent : value->extents()) {
      longest = std::max(longest, align_up(extent.length, kExtentAlignment));
    }
  }
  const HostMemory buffer(longest, false);
  std::vector<std::string> bad;
  for (const auto& [name, value] : committed) {
    for (const Extent& extent : value->extents()) {
      try {
        extent_io_->read_extent(name, extent, buffer.bytes());
      } catch (const IoError& error) {
        bad.emplace_back(error.what());
      }
    }
  }
  return bad;
}

std::vector<std::string> Store::directories() const {
  std::vector<std::string> paths;
  for (const auto& directory : directories_) {
    paths.push_back(directory->path());
  }
  return paths;
}

}  // namespace

std::unique_ptr<ExtentStore> ExtentStore::create(const ExtentStoreOptions& options,
                                                 std::shared_ptr<aio::IoEngine> io) {
  check_options(options);
  return std::make_unique<Store>(options, std::move(io));
}

}  // namespace headrace::tiers
