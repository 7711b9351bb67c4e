#include "tiers/tiered_store.h"

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "tiers/in_flight.h"
#include "tiers/residency.h"

namespace headrace::tiers {

namespace {

constexpr std::array<Tier, kTierCount> kTiers = {Tier::device, Tier::host, Tier::nvme};

/// One object's copy in one tier.
struct Copy {
  CopyState state = CopyState::absent;
  int64_t offset = 0;                 ///< of the slot, in every state but absent; unused on nvme
  int readers = 0;                    ///< read leases held
  int writers = 0;                    ///< write and update leases held
  int alone = 0;                      ///< of both, those that are not in the stream
  int transfers_out = 0;              ///< transfers that read this copy now
  std::optional<Completion> arrival;  ///< while in_flight
  device::EventRef arrived;           ///< the same for streams, of a copy from host to device
  bool superseded = false;  ///< in_flight, but a newer value was published elsewhere meanwhile
  bool has_failed = false;  ///< in_flight no more: absent as soon as nothing is pinned

  bool is_pinned() const { return readers > 0 || writers > 0 || transfers_out > 0; }
  /// Once the copy has arrived and the writes that hold leases have run.
  CopyState state_to_be() const {
    const bool arrives = arrived != nullptr && !superseded;
    return !has_failed && (writers > 0 || arrives) ? CopyState::valid : state;
  }
};

struct Object {
  ObjectSpec spec;
  std::array<Copy, kTierCount> copies;

  Copy& in(Tier tier) { return copies[static_cast<size_t>(tier)]; }
};

}  // namespace

struct TieredStore::State {
  struct Transfer {
    ObjectId object;
    Tier from;
    Tier to;
    std::byte* memory = nullptr;  ///< the upper side of an nvme transfer
    Promise promise;
  };

  explicit State(const Parts& parts_in) : parts(parts_in) {}

  Parts parts;
  mutable std::mutex mutex;
  std::deque<Object> objects;  // references stay valid
  std::map<std::string, ObjectId> names;
  TierTraffic moved;
  InFlight in_flight;

  Object& at(ObjectId id) {
    HR_CHECK(index_of(id) < objects.size(), "object {} of {}", index_of(id), objects.size());
    return objects[index_of(id)];
  }
  Arena& arena(Tier tier, std::string_view what, const Object& object) const {
    Arena* const found = tier == Tier::device ? parts.device_arena
                         : tier == Tier::host ? parts.host_arena
                                              : nullptr;
    HR_CHECK(found != nullptr, "{} of object '{}' on {}, which has no arena here", what,
             object.spec.name, to_string(tier));
    return *found;
  }

  static void require(const Object& object, Tier tier, CopyEvent event, CopyState state);
  Copy& require(Object& object, Tier tier, CopyEvent event);
  Copy& begin_source(Object& object, Tier from);
  /// Null: a new transfer begins; else the one to join.
  std::optional<Completion> join(Object& object, Tier to, int64_t offset);
  std::shared_ptr<Transfer> begin_transfer(ObjectId id, Tier from, Tier to, int64_t offset);
  Completion post_copy(const Transfer& transfer);
  Completion post_file_transfer(const Transfer& transfer, aio::IoClass io_class);
  void land(Transfer& transfer, const std::exception_ptr& error);
  void lose(Object& object, Tier tier);
  void count(Tier from, Tier to, Bytes size);
};

/// The table must let a copy in this state take `event`.
void TieredStore::State::require(const Object& object, Tier tier, CopyEvent event,
                                 CopyState state) {
  HR_CHECK(transition(state, event).allowed, "{} of object '{}' on {}, where its copy is {}",
           to_string(event), object.spec.name, to_string(tier), to_string(state));
}

/// The copy, if it can take `event` now.
Copy& TieredStore::State::require(Object& object, Tier tier, CopyEvent event) {
  Copy& copy = object.in(tier);
  require(object, tier, event, copy.state);
  return copy;
}

std::optional<Completion> TieredStore::State::join(Object& object, Tier to, int64_t offset) {
  Copy& target = require(object, to, CopyEvent::transfer_in);
  HR_CHECK(to == Tier::nvme || target.state == CopyState::absent || target.offset == offset,
           "transfer in of object '{}' to offset {} on {}, where its slot is at {}",
           object.spec.name, offset, to_string(to), target.offset);
  switch (target.state) {
    case CopyState::in_flight:
      HR_CHECK(!target.superseded,
               "transfer in of object '{}' on {}, where an outdated value is still in flight",
               object.spec.name, to_string(to));
      return target.arrival;
    case CopyState::valid:
      HR_CHECK(target.writers == 0, "transfer in of object '{}' on {}, where a write lease is held",
               object.spec.name, to_string(to));
      return Completion::done();
    case CopyState::absent:
    case CopyState::empty:
    case CopyState::stale:
      break;
  }
  HR_CHECK(!target.is_pinned(), "transfer in of object '{}' on {}, where its {} copy is pinned",
           object.spec.name, to_string(to), to_string(target.state));
  return std::nullopt;
}

std::shared_ptr<TieredStore::State::Transfer> TieredStore::State::begin_transfer(ObjectId id,
                                                                                 Tier from, Tier to,
                                                                                 int64_t offset) {
  Object& object = at(id);
  auto transfer = std::make_shared<Transfer>(Transfer{id, from, to, nullptr, Promise()});
  Copy& source = object.in(from);
  Copy& target = object.in(to);
  if (to == Tier::nvme || from == Tier::nvme) {
    HR_CHECK(parts.extents != nullptr, "transfer of object '{}' between {} and {}: no nvme tier",
             object.spec.name, to_string(from), to_string(to));
    Arena& upper = arena(to == Tier::nvme ? from : to, "transfer", object);
    transfer->memory = upper.at(to == Tier::nvme ? source.offset : offset);
  }
  if (to != Tier::nvme && target.state == CopyState::absent) {
    arena(to, "transfer", object).reserve(offset, object.spec.size, id);
    target.offset = offset;
  }
  target.state = transition(target.state, CopyEvent::transfer_in).next;
  target.superseded = false;
  target.arrival = transfer->promise.completion();
  ++source.transfers_out;
  in_flight.begin();
  return transfer;
}

/// Under the lock, which also makes this the only caller of the stream.
Completion TieredStore::State::post_copy(const Transfer& transfer) {
  try {
    Object& object = at(transfer.object);
    device::Stream* const stream =
        transfer.to == Tier::device ? parts.host_to_device : parts.device_to_host;
    HR_CHECK(stream != nullptr, "transfer of object '{}' from {} to {}: no stream for it",
             object.spec.name, to_string(transfer.from), to_string(transfer.to));
    Copy& target = object.in(transfer.to);
    stream->copy_async(arena(transfer.to, "transfer", object).at(target.offset),
                       arena(transfer.from, "transfer", object).at(object.in(transfer.from).offset),
                       object.spec.size);
    if (transfer.to == Tier::device) {
      target.arrived = stream->record();
    }
    return stream->record_completion();
  } catch (...) {
    return Completion::failed(std::current_exception());
  }
}

/// Without the lock: submitting may wait for room in the queue.
Completion TieredStore::State::post_file_transfer(const Transfer& transfer, aio::IoClass io_class) {
  try {
    const ObjectSpec& spec = [&]() -> const ObjectSpec& {
      const std::lock_guard lock(mutex);
      return at(transfer.object).spec;
    }();
    const std::span<std::byte> bytes(transfer.memory, static_cast<size_t>(spec.size.count()));
    if (transfer.to == Tier::device) {
      return parts.extents->read_direct(spec.name, *parts.direct, bytes);
    }
    return transfer.to == Tier::nvme
               ? parts.extents->write(spec.name, bytes, spec.persistent, io_class)
               : parts.extents->read(spec.name, bytes, io_class);
  } catch (...) {
    return Completion::failed(std::current_exception());
  }
}

void TieredStore::State::land(Transfer& transfer, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex);
    Object& object = at(transfer.object);
    Copy& target = object.in(transfer.to);
    --object.in(transfer.from).transfers_out;
    target.arrived.reset();
    if (error == nullptr) {
      target.arrival.reset();
      target.state = target.superseded ? CopyState::stale : CopyState::valid;
      count(transfer.from, transfer.to, object.spec.size);
    } else if (target.is_pinned()) {
      target.has_failed = true;  // work that is posted behind the copy still knows the slot
    } else {
      lose(object, transfer.to);
    }
  }
  // The state is set before the completion ends: what depends on it may start in its callbacks.
  if (error == nullptr) {
    transfer.promise.set_done();
  } else {
    transfer.promise.set_failed(error);
  }
  in_flight.end();
}

/// The copy that was to arrive has not.
void TieredStore::State::lose(Object& object, Tier tier) {
  Copy& copy = object.in(tier);
  copy.arrival.reset();
  copy.has_failed = false;
  copy.state = CopyState::absent;
  if (tier != Tier::nvme) {
    arena(tier, "transfer", object).release(copy.offset);
  } else if (!object.spec.persistent) {
    parts.extents->discard(object.spec.name);  // an earlier value, if any
  }
}

void TieredStore::State::count(Tier from, Tier to, Bytes size) {
  int64_t& lane = to == Tier::nvme     ? moved.nvme_write
                  : from == Tier::nvme ? moved.nvme_read
                  : to == Tier::device ? moved.host_to_device
                                       : moved.device_to_host;
  lane += size.count();
  if (from == Tier::nvme && to == Tier::device) {
    moved.host_to_device += size.count();
    moved.direct += size.count();
  }
}

TieredStore::TieredStore(const Parts& parts) : state_(std::make_unique<State>(parts)) {}

TieredStore::~TieredStore() {
  state_->in_flight.wait_for_none();
}

ObjectId TieredStore::add(const ObjectSpec& spec) {
  const std::lock_guard lock(state_->mutex);
  HR_CHECK(!spec.name.empty() && spec.size > Bytes(0), "object '{}' of {} bytes", spec.name,
           spec.size);
  const ObjectId id{static_cast<uint32_t>(state_->objects.size())};
  HR_CHECK(state_->names.emplace(spec.name, id).second, "object '{}' added twice", spec.name);
  state_->objects.push_back(Object{spec, {}});
  if (state_->parts.extents != nullptr && state_->parts.extents->contains(spec.name)) {
    state_->objects.back().in(Tier::nvme).state = CopyState::valid;
  }
  return id;
}

const ObjectSpec& TieredStore::spec(ObjectId object) const {
  const std::lock_guard lock(state_->mutex);
  return state_->at(object).spec;
}

CopyState TieredStore::state(ObjectId object, Tier tier) const {
  const std::lock_guard lock(state_->mutex);
  return state_->at(object).in(tier).state;
}

std::optional<int64_t> TieredStore::offset(ObjectId object, Tier tier) const {
  const std::lock_guard lock(state_->mutex);
  const Copy& copy = state_->at(object).in(tier);
  if (tier == Tier::nvme || copy.state == CopyState::absent) {
    return std::nullopt;
  }
  return copy.offset;
}

void TieredStore::place(ObjectId object, Tier tier, int64_t offset) {
  const std::lock_guard lock(state_->mutex);
  Object& entry = state_->at(object);
  Arena& arena = state_->arena(tier, "place", entry);
  Copy& copy = state_->require(entry, tier, CopyEvent::place);
  arena.reserve(offset, entry.spec.size, object);
  copy.offset = offset;
  copy.state = transition(copy.state, CopyEvent::place).next;
}

Completion TieredStore::transfer(ObjectId object, Tier from, Tier to, int64_t offset,
                                 aio::IoClass io_class) {
  std::shared_ptr<State::Transfer> transfer;
  std::optional<Completion> copied;
  {
    const std::lock_guard lock(state_->mutex);
    Object& entry = state_->at(object);
    const int distance = static_cast<int>(to) - static_cast<int>(from);
    const bool is_direct =
        from == Tier::nvme && to == Tier::device && state_->parts.direct != nullptr;
    HR_CHECK(distance == 1 || distance == -1 || is_direct, "transfer of object '{}' from {} to {}",
             entry.spec.name, to_string(from), to_string(to));
    const Copy& source = state_->require(entry, from, CopyEvent::transfer_out);
    HR_CHECK(source.writers == 0, "transfer out of object '{}' on {}, where a write lease is held",
             entry.spec.name, to_string(from));
    if (const auto joined = state_->join(entry, to, offset)) {
      return *joined;
    }
    transfer = state_->begin_transfer(object, from, to, offset);
    if (from != Tier::nvme && to != Tier::nvme) {
      copied = state_->post_copy(*transfer);
    }
  }
  Completion arrived = transfer->promise.completion();
  const Completion moved = copied ? *copied : state_->post_file_transfer(*transfer, io_class);
  moved.on_done([state = state_.get(), transfer](const std::exception_ptr& error) {
    state->land(*transfer, error);
  });
  return arrived;
}

Lease TieredStore::acquire(ObjectId object, Tier tier, LeaseMode mode, LeaseOrder order) {
  const std::lock_guard lock(state_->mutex);
  Object& entry = state_->at(object);
  const CopyEvent event = mode == LeaseMode::read    ? CopyEvent::lease_read
                          : mode == LeaseMode::write ? CopyEvent::lease_write
                                                     : CopyEvent::lease_update;
  Arena& arena = state_->arena(tier, to_string(event), entry);
  Copy& copy = entry.in(tier);
  const bool in_stream = order == LeaseOrder::in_stream;
  state_->require(entry, tier, event, in_stream ? copy.state_to_be() : copy.state);
  if (mode == LeaseMode::read) {
    HR_CHECK(copy.writers == 0 || (in_stream && copy.alone == 0),
             "read lease of object '{}' on {}, where a write lease is held", entry.spec.name,
             to_string(tier));
    ++copy.readers;
  } else {
    const bool is_free = in_stream ? copy.alone == 0 && copy.transfers_out == 0 : !copy.is_pinned();
    HR_CHECK(is_free, "{} of object '{}' on {}, where its {} copy is pinned", to_string(event),
             entry.spec.name, to_string(tier), to_string(copy.state));
    for (const Tier other : kTiers) {
      HR_CHECK(other == tier || entry.in(other).writers == 0,
               "{} of object '{}' on {} while a write lease on {} is held", to_string(event),
               entry.spec.name, to_string(tier), to_string(other));
    }
    ++copy.writers;
  }
  copy.alone += in_stream ? 0 : 1;
  Lease lease;
  lease.store_ = this;
  lease.object_ = object;
  lease.tier_ = tier;
  lease.mode_ = mode;
  lease.order_ = order;
  lease.bytes_ = {arena.at(copy.offset), static_cast<size_t>(entry.spec.size.count())};
  lease.behind_ = copy.arrived;
  return lease;
}

void TieredStore::release(ObjectId object, Tier tier, LeaseMode mode, LeaseOrder order) noexcept {
  const std::lock_guard lock(state_->mutex);
  Object& entry = state_->at(object);
  Copy& copy = entry.in(tier);
  copy.alone -= order == LeaseOrder::alone ? 1 : 0;
  --(mode == LeaseMode::read ? copy.readers : copy.writers);
  if (copy.has_failed) {
    if (!copy.is_pinned()) {
      state_->lose(entry, tier);
    }
    return;
  }
  if (mode == LeaseMode::read) {
    return;
  }
  if (copy.state != CopyState::in_flight) {  // else it becomes valid when it lands
    copy.state = CopyState::valid;
  }
  for (const Tier other : kTiers) {
    Copy& rest = entry.in(other);
    if (other != tier && rest.state == CopyState::valid) {
      rest.state = CopyState::stale;
    } else if (other != tier && rest.state == CopyState::in_flight) {
      rest.superseded = true;
    }
  }
}

void TieredStore::drop(ObjectId object, Tier tier) {
  const std::lock_guard lock(state_->mutex);
  Object& entry = state_->at(object);
  Copy& copy = state_->require(entry, tier, CopyEvent::drop);
  HR_CHECK(!copy.is_pinned(), "drop of object '{}' on {}, where its {} copy is pinned",
           entry.spec.name, to_string(tier), to_string(copy.state));
  if (copy.state == CopyState::absent) {
    return;
  }
  if (tier == Tier::nvme) {
    state_->parts.extents->discard(entry.spec.name);
  } else {
    state_->arena(tier, "drop", entry).release(copy.offset);
  }
  copy.state = transition(copy.state, CopyEvent::drop).next;
}

TierTraffic TieredStore::traffic() const {
  const std::lock_guard lock(state_->mutex);
  return state_->moved;
}

Bytes TieredStore::used(Tier tier) const {
  const Parts& parts = state_->parts;
  const Arena* arena = tier == Tier::device ? parts.device_arena
                       : tier == Tier::host ? parts.host_arena
                                            : nullptr;
  return arena != nullptr ? arena->used() : Bytes(0);
}

}  // namespace headrace::tiers
