#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "aio/io.h"
#include "base/completion.h"
#include "base/tier.h"
#include "base/units.h"
#include "device/device.h"
#include "tiers/arena.h"
#include "tiers/extent_store.h"

namespace headrace::tiers {

/// Table of residency, one entry per object and tier (tiers/residency.h has it as code):
///
///   state      | place      transfer in   transfer out   lease read   lease write      drop
///   absent     | -> empty   -> in_flight  error          error        error            ok
///   empty      | error      -> in_flight  error          error        -> valid         -> absent
///   in_flight  | error      joins         error          error        error            error
///   valid      | error      joins (done)  ok             ok           ok               -> absent
///   stale      | error      -> in_flight  error          error        -> valid         -> absent
///
/// An update lease needs the copy valid. A lease or a transfer out pins the copy: drop and a
/// refreshing transfer in are errors while pinned. A write or update lease needs a copy that is not
/// pinned, there is one per object at a time, and until its release no other lease or transfer of
/// that copy can begin. Its release makes the valid copies of the other tiers stale: they must be
/// refreshed by a transfer or dropped before they are used again (reading one is an error); one
/// that is in flight then arrives stale. A failed transfer leaves its target absent, with the slot
/// released, once no lease is held on it.
///
/// Leases in a stream (LeaseOrder) do not exclude each other: after a write lease the copy counts
/// as valid for them, and so does one that is on its way from host to device, behind its arrival
/// (Lease::behind). They are released in the order in which they were acquired.
enum class CopyState : uint8_t { absent, empty, in_flight, valid, stale };

struct ObjectSpec {
  std::string name;  ///< unique; the key on nvme
  Bytes size;        ///< slot size, aligned
  bool persistent = false;
};

enum class LeaseMode : uint8_t { read, write, update };

/// What keeps the users of a copy apart.
enum class LeaseOrder : uint8_t {
  alone,      ///< the leases themselves
  in_stream,  ///< one stream, which runs the work of all that have such a lease in turn: a lease
              ///< may begin while the work of earlier ones has not ended
};

class TieredStore;

/// Move-only pin of an object's bytes in a tier. Releasing a write or update lease publishes the
/// new value.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  std::span<std::byte> bytes() const { return bytes_; }
  /// What the stream has to wait for before it uses the bytes; null: nothing. Only in a stream.
  const device::EventRef& behind() const { return behind_; }
  void release();

 private:
  friend class TieredStore;
  TieredStore* store_ = nullptr;
  ObjectId object_{};
  Tier tier_ = Tier::host;
  LeaseMode mode_ = LeaseMode::read;
  LeaseOrder order_ = LeaseOrder::alone;
  std::span<std::byte> bytes_;
  device::EventRef behind_;
};

/// Bytes over each boundary since the start.
struct TierTraffic {
  int64_t nvme_read = 0;
  int64_t nvme_write = 0;
  int64_t host_to_device = 0;
  int64_t device_to_host = 0;
  int64_t direct = 0;  ///< straight from nvme to the device; part of nvme_read and host_to_device

  TierTraffic& operator+=(const TierTraffic& part) {
    nvme_read += part.nvme_read;
    nvme_write += part.nvme_write;
    host_to_device += part.host_to_device;
    device_to_host += part.device_to_host;
    direct += part.direct;
    return *this;
  }
  TierTraffic& operator-=(const TierTraffic& part) {
    nvme_read -= part.nvme_read;
    nvme_write -= part.nvme_write;
    host_to_device -= part.host_to_device;
    device_to_host -= part.device_to_host;
    direct -= part.direct;
    return *this;
  }
  bool operator==(const TierTraffic&) const = default;
};

/// Objects in the tiers: where each copy lies, in which state, and the movement between adjacent
/// tiers. It carries out decisions (offsets are given); it takes none. Misuse is an InternalError
/// that names object, tier and state. Thread-safe. Lock order: TieredStore, then Arena.
class TieredStore {
 public:
  struct Parts {
    Arena* device_arena = nullptr;  ///< null: no device tier
    Arena* host_arena = nullptr;
    std::shared_ptr<ExtentStore> extents;  ///< null: no nvme tier
    device::Stream* host_to_device =
        nullptr;  ///< used by one caller at a time under the store's lock
    device::Stream* device_to_host = nullptr;
    /// Of device_arena's memory; null: no direct reads. The store's extents are not verified.
    device::DirectReader* direct = nullptr;
  };
  explicit TieredStore(const Parts& parts);
  ~TieredStore();
  TieredStore(const TieredStore&) = delete;
  TieredStore& operator=(const TieredStore&) = delete;

  ObjectId add(const ObjectSpec& spec);
  const ObjectSpec& spec(ObjectId object) const;

  CopyState state(ObjectId object, Tier tier) const;
  /// Offset of the slot, for device and host.
  std::optional<int64_t> offset(ObjectId object, Tier tier) const;

  /// Reserves an empty slot for a value that a write lease will fill.
  void place(ObjectId object, Tier tier, int64_t offset);
  /// Copies the valid value in `from` to the adjacent tier `to`, or, with a direct reader, from
  /// nvme to the device. For device and host targets: to the slot at `offset`, which is reserved
  /// now where the object has none there.
  Completion transfer(ObjectId object, Tier from, Tier to, int64_t offset, aio::IoClass io_class);
  /// Pins the copy. read and update need it valid; write needs it empty, valid or stale. In a
  /// stream, what earlier leases will have written and what is on its way to the device is valid.
  Lease acquire(ObjectId object, Tier tier, LeaseMode mode, LeaseOrder order = LeaseOrder::alone);
  /// Forgets the copy and frees its slot.
  void drop(ObjectId object, Tier tier);

  TierTraffic traffic() const;
  /// Bytes that slots take in the tier's arena; 0 where there is none.
  Bytes used(Tier tier) const;

 private:
  friend class Lease;
  struct State;
  void release(ObjectId object, Tier tier, LeaseMode mode, LeaseOrder order) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::tiers
