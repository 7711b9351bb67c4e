#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "tiers/repair.h"
#include "tiers/store.h"

namespace headrace::tiers {

void Store::change_catalog(const std::function<void()>& change) {
  is_changed_ = true;
  try {
    change();
  } catch (...) {
    is_uncertain_ = true;
    throw;
  }
}

Store::PendingCommit Store::take_changes(uint64_t generation,
                                         const std::map<std::string, std::string>& run_state) {
  const std::lock_guard lock(mutex_);
  HR_CHECK(!has_generation_ || generation >= generation_, "commit of generation {} after {}",
           generation, generation_);
  PendingCommit pending;
  pending.change.generation = generation;
  pending.change.committed_unix_nanoseconds = unix_nanoseconds_now();
  pending.change.run_state = run_state;
  for (auto& [name, entry] : entries_) {
    const bool is_persistent = entry.latest != nullptr && entry.latest->is_persistent();
    const StoredValueRef next = is_persistent ? entry.latest : nullptr;
    if (next == entry.committed.value && !entry.overwritten) {
      continue;
    }
    entry.overwritten = false;
    pending.values[name] = {next, generation};
    if (next == nullptr) {
      pending.change.removed.push_back(name);
    } else {
      pending.change.written[name] = catalog_object(pending.values[name]);
    }
  }
  return pending;
}

void Store::publish(PendingCommit& pending) {
  change_catalog([&] { files_.catalog->commit(pending.change); });
  is_marked_ = false;
  const std::lock_guard lock(mutex_);
  generation_ = pending.change.generation;
  has_generation_ = true;
  committed_at_ = pending.change.committed_unix_nanoseconds;
  run_state_ = pending.change.run_state;
  if (keep_) {
    files_.set_keep(true);
  }
  for (auto& [name, value] : pending.values) {
    Entry& entry = entries_[name];
    std::swap(entry.committed, value);  // the superseded ones are freed with `pending`
    erase_if_unused(name);
  }
}

void Store::commit(uint64_t generation, const std::map<std::string, std::string>& run_state) {
  const std::lock_guard commit_lock(commit_mutex_);
  HR_CHECK(!is_torn_, "commit of generation {} over one that is not whole", generation);
  PendingCommit pending = take_changes(generation, run_state);
  fault_point("before sync");
  files_.allocator->sync_written();
  fault_point("after sync");
  publish(pending);
}

void Store::mark() {
  std::vector<StoredValueRef> superseded;  // freed when the lock is no more held
  const std::lock_guard lock(mutex_);
  HR_CHECK(!in_place_, "a mark where values are written in place");
  for (auto& [name, entry] : entries_) {
    const bool is_persistent = entry.latest != nullptr && entry.latest->is_persistent();
    superseded.push_back(
        std::exchange(entry.marked, is_persistent ? entry.latest : StoredValueRef()));
  }
}

void Store::roll_back() {
  std::vector<StoredValueRef> dropped;  // freed when the lock is no more held
  const std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    HR_CHECK(!entry.writing, "roll back while object '{}' is being written", it->first);
    const bool is_scratch = entry.latest != nullptr && !entry.latest->is_persistent();
    if (!is_scratch) {
      dropped.push_back(std::exchange(entry.latest, entry.marked));
    }
    it = is_unused(entry) ? entries_.erase(it) : std::next(it);
  }
}

uint64_t Store::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

bool Store::has_generation() const {
  const std::lock_guard lock(mutex_);
  return has_generation_;
}

void Store::set_in_place(bool in_place) {
  const std::lock_guard lock(mutex_);
  in_place_ = in_place;
}

bool Store::is_torn() const {
  const std::lock_guard lock(mutex_);
  return is_torn_;
}

CommittedValues Store::committed_values() const {
  CommittedValues values;
  for (const auto& [name, entry] : entries_) {
    if (entry.committed.value != nullptr) {
      values[name] = entry.committed;
    }
  }
  return values;
}

std::vector<GenerationInfo> Store::generations() const {
  return describe_generations(files_.catalog->read());
}

const Snapshot& Store::snapshot(uint64_t generation) const {
  const auto found = snapshots_.find(generation);
  if (found == snapshots_.end()) {
    std::string known;
    for (const auto& [other, values] : snapshots_) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", other);
    }
    throw InputError(fmt::format("there is no snapshot of generation {}; {}", generation,
                                 known.empty() ? "the run has none" : "there are " + known));
  }
  return found->second;
}

std::unique_ptr<ValueReader> Store::open_value(std::optional<uint64_t> generation,
                                               const std::string& name) {
  const std::lock_guard lock(mutex_);
  StoredValueRef value;
  const bool is_committed = !generation || (has_generation_ && *generation == generation_ &&
                                            !snapshots_.contains(*generation));
  if (!is_committed) {
    const CommittedValues& values = snapshot(*generation).values;
    const auto found = values.find(name);
    value = found != values.end() ? found->second.value : nullptr;
  } else {
    const auto found = entries_.find(name);
    value = found != entries_.end() ? found->second.committed.value : nullptr;
  }
  if (value == nullptr) {
    throw InputError(fmt::format("{}: there is no object '{}' in this generation",
                                 files_.paths().front(), name));
  }
  return std::make_unique<ValueReader>(*extent_io_, name, std::move(value));
}

/// From the next commit on the snapshot has space of its own, and beside it and the committed
/// generation every step writes all values anew; in place it writes over the committed ones.
void Store::check_room(Bytes freed) const {
  const Bytes needed = total_bytes(committed_values()) * (in_place_ ? 1 : 2);
  const Bytes available = files_.allocator->available() + freed;
  if (available < needed) {
    throw CapacityError(fmt::format(
        "a snapshot of generation {} would leave {} on nvme for the next steps, which need {}: the "
        "disk budget is {}; raise it (--nvme-budget, headrace.nvme_budget), or delete a snapshot "
        "(headrace checkpoint delete)",
        generation_, format_bytes(available), format_bytes(needed),
        format_bytes(files_.allocator->disk_budget())));
  }
}

/// Before the error comes a warning: the snapshot that is being taken may be the last that fits.
void Store::warn_of_last_room(Bytes freed) {
  const Bytes size = total_bytes(committed_values());
  const Bytes needed = size * (in_place_ ? 1 : 2);
  const Bytes available = files_.allocator->available() + freed;
  if (available - size < needed && !std::exchange(has_warned_of_room_, true)) {
    log_warning(
        "{}: beside the snapshot of generation {} the disk budget of {} leaves no room for a "
        "further one: raise it (--nvme-budget, headrace.nvme_budget), keep fewer "
        "(headrace.keep_last), or delete some (headrace checkpoint delete)",
        files_.paths().front(), generation_, format_bytes(files_.allocator->disk_budget()));
  }
}

void Store::take_snapshot(bool is_automatic, int64_t keep_last) {
  const std::lock_guard commit_lock(commit_mutex_);
  Snapshot taken;
  std::vector<uint64_t> removed;
  {
    const std::lock_guard lock(mutex_);
    HR_CHECK(has_generation_ && !is_torn_ && !is_marked_, "a snapshot of no whole generation");
    taken.values = committed_values();
    // One that was asked for by hand stays so.
    const auto same = snapshots_.find(generation_);
    const bool by_hand =
        !is_automatic || (same != snapshots_.end() && !same->second.record.automatic);
    taken.record = {generation_, committed_at_, unix_nanoseconds_now(), !by_hand, run_state_, {}};
    int64_t kept = is_automatic ? 1 : 0;
    std::vector<const CommittedValues*> staying{&taken.values};
    CommittedValues going;
    for (auto at = snapshots_.rbegin(); at != snapshots_.rend(); ++at) {
      const auto& [generation, other] = *at;
      if (generation == generation_) {
        continue;
      }
      if (is_automatic && other.record.automatic && keep_last > 0 && ++kept > keep_last) {
        removed.push_back(generation);
        for (const auto& [name, value] : other.values) {
          going.emplace(fmt::format("{}/{}", generation, name), value);
        }
      } else {
        staying.push_back(&other.values);
      }
    }
    const Bytes freed = own_bytes(going, staying);
    check_room(freed);
    if (!is_automatic || keep_last == 0 || kept < keep_last) {  // else the next takes an old one's
      warn_of_last_room(freed);
    }
  }
  CatalogSnapshot record = taken.record;
  for (const auto& [name, value] : taken.values) {
    record.objects[name] = catalog_object(value);
  }
  fault_point("before snapshot");
  change_catalog([&] { files_.catalog->change_snapshots(&record, removed); });
  fault_point("after snapshot");
  const std::lock_guard lock(mutex_);
  snapshots_[record.generation] = std::move(taken);
  for (const uint64_t generation : removed) {
    snapshots_.erase(generation);
  }
}

void Store::delete_snapshot(uint64_t generation) {
  const std::lock_guard commit_lock(commit_mutex_);
  {
    const std::lock_guard lock(mutex_);
    snapshot(generation);
  }
  fault_point("before delete");
  change_catalog([&] { files_.catalog->change_snapshots(nullptr, {generation}); });
  fault_point("after delete");
  const std::lock_guard lock(mutex_);
  snapshots_.erase(generation);
}

void Store::restore(uint64_t generation) {
  const std::lock_guard commit_lock(commit_mutex_);
  PendingCommit pending;
  {
    const std::lock_guard lock(mutex_);
    const Snapshot& from = snapshot(generation);
    pending.change.generation = generation;
    pending.change.committed_unix_nanoseconds = from.record.committed_unix_nanoseconds;
    pending.change.run_state = from.record.run_state;
    for (auto& [name, entry] : entries_) {
      HR_CHECK(!entry.writing, "restore while object '{}' is being written", name);
      if (!from.values.contains(name)) {
        pending.values[name] = {};
        pending.change.removed.push_back(name);
      }
      entry.latest = nullptr;
      entry.marked = nullptr;
    }
    for (const auto& [name, value] : from.values) {
      pending.values[name] = value;
      pending.change.written[name] = catalog_object(value);
      entries_[name].latest = value.value;
    }
  }
  publish(pending);
  const std::lock_guard lock(mutex_);
  is_torn_ = false;
}

void Store::hold_generations(HeldGenerations& held) const {
  const std::lock_guard lock(mutex_);
  held.committed = committed_values();
  held.snapshots = snapshots_;
  for (const auto& [generation, kept] : held.snapshots) {
    held.list.emplace_back(generation, &kept.values);
  }
  // A torn generation is known to be damaged.
  if (has_generation_ && !is_torn_) {
    held.list.emplace_back(generation_, &held.committed);
  }
}

std::vector<Damage> Store::verify(const Progress& progress) {
  HeldGenerations held;
  hold_generations(held);
  return verify_values(held.list, *extent_io_, progress);
}

std::vector<Repair> Store::repair(const std::vector<Damage>& damage, const Guess& guess) {
  const std::lock_guard commit_lock(commit_mutex_);
  HeldGenerations held;
  hold_generations(held);
  return repair_extents(damage, held.list, *extent_io_, guess);
}

}  // namespace headrace::tiers
