#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/trace.h"

namespace headrace::scheduler {

enum class ActionKind : uint8_t {
  /// Copy an object's current value from one tier to an adjacent one, or from nvme straight to the
  /// device, where the rates have direct reads.
  transfer,
  operation,  ///< run an operation of the trace
  drop,       ///< forget a copy; its slot may be used again. Costs nothing.
  place,      ///< reserve a slot for a value that the next operation writes. Costs nothing.
};

/// One step of the plan. It may start when all actions in `after` have ended.
struct Action {
  ActionKind kind = ActionKind::operation;
  ObjectId object{};            ///< transfer, drop, place
  Tier from = Tier::nvme;       ///< transfer: source; drop, place: the tier
  Tier to = Tier::host;         ///< transfer: target
  int64_t offset = 0;           ///< transfer: target slot; place: slot; unused for nvme
  uint32_t operation = 0;       ///< operation: index in the trace
  std::vector<uint32_t> after;  ///< indices of earlier actions, ascending

  bool operator==(const Action&) const = default;
};

/// The compiled memory plan of a trace: actions in an order in which they could run one at a time,
/// with the dependencies that let a runtime overlap them. All slots are fixed here, so the runtime
/// never allocates, never exceeds a budget, never deadlocks (dependencies point backwards only).
struct Schedule {
  /// The in_order operations of one lane stand in the order of the trace, and a runtime starts them
  /// in it.
  std::vector<Action> actions;
  std::vector<Residency> initial;  ///< what must be resident when it starts
  /// What the arenas hold when it has ended, least recently used first: the next `initial`.
  std::vector<Residency> final;
  Bytes peak_device;  ///< arena high water
  Bytes peak_host;
  Bytes nvme_read;  ///< bytes moved over each boundary; direct reads cross two
  Bytes nvme_write;
  Bytes host_to_device;
  Bytes device_to_host;
  Bytes direct;  ///< of nvme_read and of host_to_device: direct reads

  bool operator==(const Schedule&) const = default;
};

/// How far a trace can be relied on.
enum class Foresight : uint8_t {
  whole_step,  ///< it is a step from its begin to its end, and runs as it stands
  /// It is expected to be the rest of a step whose operations are announced one by one; any of them
  /// may turn out to be another. A value is therefore given up only when an operation has replaced
  /// or discarded it, and objects without home are still there at the end.
  expected_rest,
  /// The same, but the step goes on after it: values stay where they are, changed ones too.
  expected_part,
};

struct CompileInput {
  const Trace* trace = nullptr;
  const std::vector<ObjectFacts>* objects = nullptr;  ///< by ObjectId
  Budgets budgets;
  Rates rates;
  /// What is resident now. Objects with home device or host must appear with their home slots;
  /// objects whose current value is on nvme need no entry. Home slots are packed at the low end of
  /// their arena. In order of last use, where that matters to the policy (lru).
  /// In the middle of a step also dirty copies, and all of objects without home that have a value.
  std::vector<Residency> initial;
  Foresight foresight = Foresight::whole_step;
};

/// Compiles the trace. Throws CapacityError naming operation, tier and the bytes missing when the
/// objects of one operation do not fit.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  virtual Schedule compile(const CompileInput& input) const = 0;
};

/// What a schedule's bytes over nvme are worth in seconds of the step, where schedules are
/// compared: they wear the drive, and what was kept instead may serve the next step as well.
double drive_cost(const Rates& rates, const Schedule& schedule);

enum class PolicyEffort : uint8_t {
  thorough,  ///< compares all of its plans
  planning,  ///< the same, less for long traces: a run has the time of its steps to compile
  quick,     ///< a third of them: enough to tell which of several traces is faster
};

/// What `policy` compiles, with direct reads where the rates have them and they make the step no
/// slower (scheduler/direct_reads.h).
std::unique_ptr<Policy> with_direct_reads(std::unique_ptr<Policy> policy);

/// Farthest next use (cyclic: the trace is expected to repeat), aware of write-back cost and of the
/// time a fetch needs to arrive before its use.
std::unique_ptr<Policy> make_optimal_policy(PolicyEffort effort = PolicyEffort::thorough);
/// Least recently used; the baseline.
std::unique_ptr<Policy> make_lru_policy();

/// Smallest budgets with which compile() succeeds from a state where everything is at home.
/// minimum_host is computed for a device budget of `device`, minimum_device is independent of the
/// host's.
Bytes minimum_device_budget(const Trace& trace, const std::vector<ObjectFacts>& objects,
                            Bytes alignment);
Bytes minimum_host_budget(const Trace& trace, const std::vector<ObjectFacts>& objects, Bytes device,
                          Bytes alignment);

/// Independent check of a schedule against trace, objects and budgets: replays it under every
/// interleaving its dependencies allow (by reasoning on the dependency order, not by enumeration)
/// and returns the violations found, as sentences; empty when sound.
std::vector<std::string> check_schedule(const CompileInput& input, const Schedule& schedule);

/// One executed action on the time line, seconds from the start.
struct Span {
  uint32_t action = 0;
  Lane lane = Lane::compute;
  double begin = 0;
  double end = 0;
};
struct Timeline {
  std::vector<Span> spans;
  double seconds = 0;
};
/// Event simulation: one server per lane, actions start when their dependencies have ended and the
/// lane is free, in order of the schedule among those that are ready.
Timeline simulate(const CompileInput& input, const Schedule& schedule);

/// Time that no schedule with these transfers can beat: the busiest lane.
struct StepBound {
  double seconds = 0;
  Lane lane = Lane::compute;
  /// Of the drive's: with as much as can be of both directions at once.
  double lane_seconds[kLaneCount] = {};

  /// The bound of two schedules that run one after the other, as if they could overlap.
  StepBound& operator+=(const StepBound& other);
};
StepBound channel_bound(const CompileInput& input, const Schedule& schedule);
/// The same of lanes that are busy so long, each direction of the drive as if it were alone.
using LaneSeconds = std::array<double, kLaneCount>;
StepBound channel_bound(const Rates& rates, const LaneSeconds& alone);

}  // namespace headrace::scheduler
