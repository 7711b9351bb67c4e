#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/tier.h"
#include "base/units.h"

namespace headrace::scheduler {

/// What resource an operation runs on. Operations of different lanes overlap.
enum class Lane : uint8_t {
  nvme_read,
  nvme_write,
  host_to_device,
  device_to_host,
  compute,
  cpu_optimizer,
};
inline constexpr int kLaneCount = 6;
std::string_view to_string(Lane lane);

/// Facts about one object, by dense ObjectId index in a table.
struct ObjectFacts {
  std::string name;
  Bytes size;  ///< bytes of its slot in a tier, already aligned
  /// Lowest (slowest) tier that may hold it.
  Tier floor = Tier::nvme;
  /// Where a persistent object's current value must be found after a trace ends; its slot there is
  /// reserved for good. Empty for an object that lives inside one trace.
  std::optional<Tier> home;

  bool operator==(const ObjectFacts&) const = default;
};

enum class Access : uint8_t {
  read,    ///< content is needed, unchanged
  write,   ///< content is wholly replaced; the old value is not needed (also creates it)
  update,  ///< content is needed and changed
};

/// One operation's use of one object in one tier.
struct Use {
  ObjectId object{};
  Tier tier = Tier::device;
  Access access = Access::read;
  bool discard_after = false;  ///< the value is dead after this operation

  bool operator==(const Use&) const = default;
};

/// One operation of the trace. Its lane is compute or cpu_optimizer.
struct Operation {
  std::string name;
  Lane lane = Lane::compute;
  std::vector<Use> uses;  ///< each object at most once
  double seconds = 0;     ///< estimated duration, for prefetch distance, bound and simulation
  /// Starts only when every earlier in_order operation of its lane has started; for operations that
  /// share what is no object: a lane's scratch memory, an output file.
  bool in_order = false;
  /// The first operation of a pass through the network (a micro-batch): the liveness policy, which
  /// plans pass by pass, starts over.
  bool starts_pass = false;

  bool operator==(const Operation&) const = default;
};

/// A known sequence of operations. Their effect is that of running them one after another.
struct Trace {
  std::string name;
  std::vector<Operation> operations;

  bool operator==(const Trace&) const = default;
};

/// A copy of an object in a tier.
struct Residency {
  ObjectId object{};
  Tier tier = Tier::host;
  int64_t offset = 0;  ///< bytes in the arena of the tier; 0 on nvme
  bool dirty = false;  ///< newer than the home copy (or the only copy)

  bool operator==(const Residency&) const = default;
};

struct Budgets {
  /// Arena bytes for objects on device and host (workspace excluded). Device 0: no device tier.
  /// nvme is unlimited here; the store keeps its own budget.
  Bytes device;
  Bytes host;
  Bytes alignment{4096};

  bool operator==(const Budgets&) const = default;
};

/// Rates in bytes per second, and latencies in seconds: a transfer's bytes occupy its lane, then
/// the latency passes before it has ended, while the lane is free for the next one.
struct Rates {
  double nvme_read = 2e9;   ///< while nothing is written
  double nvme_write = 2e9;  ///< while nothing is read
  double host_to_device = 10e9;
  double device_to_host = 10e9;
  double nvme_latency = 50e-6;
  double link_latency = 50e-6;
  /// Both directions together while both go on, each slowed by the same factor; 0: neither slows
  /// the other.
  double nvme_both = 0;
  /// Of nvme_read, what reads from nvme straight to the device reach; 0: there are none.
  double direct_share = 0;
  /// What the drive serves side by side, so that each of it arrives late; 0: one transfer ends
  /// after the other. Plans are compared with it; simulate() and the bounds leave it out.
  Bytes nvme_side_by_side = kMiB * 16;

  bool operator==(const Rates&) const = default;
};

}  // namespace headrace::scheduler
