#include "scheduler/trace_codec.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "scheduler/input_check.h"

namespace headrace::scheduler {

namespace {

/// More than any memory or drive has; sums and products of such numbers stay inside 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 48;
constexpr int64_t kLargestAlignment = int64_t{1} << 30;
constexpr double kMostSeconds = 1e9;

proto::TraceTier to_record(Tier tier) {
  switch (tier) {
    case Tier::device:
      return proto::TRACE_TIER_DEVICE;
    case Tier::host:
      return proto::TRACE_TIER_HOST;
    case Tier::nvme:
      return proto::TRACE_TIER_NVME;
  }
  throw InternalError("internal error: unknown tier");
}

Tier tier_from(proto::TraceTier tier, const char* what) {
  switch (tier) {
    case proto::TRACE_TIER_DEVICE:
      return Tier::device;
    case proto::TRACE_TIER_HOST:
      return Tier::host;
    case proto::TRACE_TIER_NVME:
      return Tier::nvme;
    default:
      throw InputError(fmt::format("{}: tier {} is unknown", what, static_cast<int>(tier)));
  }
}

proto::TraceUse::Access to_record(Access access) {
  switch (access) {
    case Access::read:
      return proto::TraceUse::READ;
    case Access::write:
      return proto::TraceUse::WRITE;
    case Access::update:
      return proto::TraceUse::UPDATE;
  }
  throw InternalError("internal error: unknown access");
}

Access access_from(proto::TraceUse::Access access) {
  switch (access) {
    case proto::TraceUse::READ:
      return Access::read;
    case proto::TraceUse::WRITE:
      return Access::write;
    case proto::TraceUse::UPDATE:
      return Access::update;
    default:
      throw InputError(fmt::format("access {} is unknown", static_cast<int>(access)));
  }
}

proto::TraceAction::Kind to_record(ActionKind kind) {
  switch (kind) {
    case ActionKind::transfer:
      return proto::TraceAction::TRANSFER;
    case ActionKind::operation:
      return proto::TraceAction::OPERATION;
    case ActionKind::drop:
      return proto::TraceAction::DROP;
    case ActionKind::place:
      return proto::TraceAction::PLACE;
  }
  throw InternalError("internal error: unknown kind of action");
}

ActionKind kind_from(proto::TraceAction::Kind kind) {
  switch (kind) {
    case proto::TraceAction::TRANSFER:
      return ActionKind::transfer;
    case proto::TraceAction::OPERATION:
      return ActionKind::operation;
    case proto::TraceAction::DROP:
      return ActionKind::drop;
    case proto::TraceAction::PLACE:
      return ActionKind::place;
    default:
      throw InputError(fmt::format("kind of action {} is unknown", static_cast<int>(kind)));
  }
}

Bytes bytes_from(int64_t count, const char* what) {
  if (count < 0 || count > kMostBytes) {
    throw InputError(fmt::format("{}: {} bytes are out of range", what, count));
  }
  return Bytes(count);
}

double seconds_from(double seconds, const char* what) {
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {
    throw InputError(fmt::format("{}: {} seconds are out of range", what, seconds));
  }
  return seconds;
}

double rate_from(double rate, const char* what) {
  // Less than a byte per second would make durations that overflow.
  if (!(rate >= 1 && std::isfinite(rate))) {
    throw InputError(fmt::format("{}: {} bytes per second are out of range", what, rate));
  }
  return rate;
}

ObjectId object_from(uint32_t index, size_t objects) {
  if (index >= objects) {
    throw InputError(fmt::format("object {} is unknown; there are {}", index, objects));
  }
  return ObjectId{index};
}

ObjectFacts object_facts_from(const proto::TraceObject& from) {
  ObjectFacts facts;
  facts.name = from.name();
  facts.size = bytes_from(from.size(), "size of an object");
  facts.floor = tier_from(from.floor(), "floor of an object");
  if (from.home() != proto::TRACE_TIER_NONE) {
    facts.home = tier_from(from.home(), "home of an object");
  }
  return facts;
}

Operation operation_from(const proto::TraceOperation& from) {
  Operation operation;
  operation.name = from.name();
  switch (from.lane()) {
    case proto::TraceOperation::COMPUTE:
      operation.lane = Lane::compute;
      break;
    case proto::TraceOperation::CPU_OPTIMIZER:
      operation.lane = Lane::cpu_optimizer;
      break;
    default:
      throw InputError(fmt::format("operation '{}': lane {} is unknown", operation.name,
                                   static_cast<int>(from.lane())));
  }
  for (const proto::TraceUse& use : from.uses()) {
    operation.uses.push_back({ObjectId{use.object()}, tier_from(use.tier(), "use"),
                              access_from(use.access()), use.discard_after()});
  }
  operation.seconds = seconds_from(from.seconds(), "operation");
  operation.in_order = from.in_order();
  operation.starts_pass = from.starts_pass();
  return operation;
}

void to_record(const Residency& residency, proto::TraceResidency& to) {
  to.set_object(index_of(residency.object));
  to.set_tier(to_record(residency.tier));
  to.set_offset(residency.offset);
  to.set_dirty(residency.dirty);
}

Residency residency_from(const proto::TraceResidency& from, size_t objects) {
  Residency residency;
  residency.object = object_from(from.object(), objects);
  residency.tier = tier_from(from.tier(), "residency");
  residency.offset = bytes_from(from.offset(), "offset of a residency").count();
  residency.dirty = from.dirty();
  return residency;
}

void to_record(const Action& action, proto::TraceAction& to) {
  to.set_kind(to_record(action.kind));
  to.set_object(index_of(action.object));
  to.set_from(to_record(action.from));
  to.set_to(to_record(action.to));
  to.set_offset(action.offset);
  to.set_operation(action.operation);
  to.mutable_after()->Add(action.after.begin(), action.after.end());
}

Action action_from(const proto::TraceAction& from, uint32_t index, const SavedTrace& trace) {
  Action action;
  action.kind = kind_from(from.kind());
  action.object = ObjectId{from.object()};
  action.from = tier_from(from.from(), "action");
  action.to = tier_from(from.to(), "action");
  action.offset = bytes_from(from.offset(), "offset of an action").count();
  action.operation = from.operation();
  action.after.assign(from.after().begin(), from.after().end());
  if (action.kind != ActionKind::operation) {
    object_from(from.object(), trace.objects.size());
  } else if (action.operation >= trace.trace.operations.size()) {
    throw InputError(fmt::format("action {}: operation {} is unknown", index, action.operation));
  }
  const int distance = static_cast<int>(action.to) - static_cast<int>(action.from);
  if (action.kind == ActionKind::transfer && distance != 1 && distance != -1) {
    throw InputError(fmt::format("action {}: a transfer between tiers that do not touch", index));
  }
  for (size_t i = 0; i < action.after.size(); ++i) {
    if (action.after[i] >= index || (i > 0 && action.after[i] <= action.after[i - 1])) {
      throw InputError(
          fmt::format("action {}: its dependencies are not ascending earlier actions", index));
    }
  }
  return action;
}

void to_record(const SavedRound& round, proto::TraceRound& to) {
  const Schedule& schedule = round.schedule;
  to.set_number(round.number);
  for (const Residency& residency : schedule.initial) {
    to_record(residency, *to.add_initial());
  }
  for (const Action& action : schedule.actions) {
    to_record(action, *to.add_actions());
  }
  for (const Residency& residency : schedule.final) {
    to_record(residency, *to.add_final());
  }
  to.set_peak_device(schedule.peak_device.count());
  to.set_peak_host(schedule.peak_host.count());
  to.set_nvme_read(schedule.nvme_read.count());
  to.set_nvme_write(schedule.nvme_write.count());
  to.set_host_to_device(schedule.host_to_device.count());
  to.set_device_to_host(schedule.device_to_host.count());
  to.set_predicted_seconds(round.predicted_seconds);
}

SavedRound round_from(const proto::TraceRound& from, const SavedTrace& trace) {
  SavedRound round;
  round.number = from.number();
  if (round.number < 1) {
    throw InputError(fmt::format("round {} is no number of a round", round.number));
  }
  Schedule& schedule = round.schedule;
  for (const proto::TraceResidency& residency : from.initial()) {
    schedule.initial.push_back(residency_from(residency, trace.objects.size()));
  }
  for (const proto::TraceAction& action : from.actions()) {
    schedule.actions.push_back(
        action_from(action, static_cast<uint32_t>(schedule.actions.size()), trace));
  }
  for (const proto::TraceResidency& residency : from.final()) {
    schedule.final.push_back(residency_from(residency, trace.objects.size()));
  }
  schedule.peak_device = bytes_from(from.peak_device(), "peak on the device");
  schedule.peak_host = bytes_from(from.peak_host(), "peak in the host");
  schedule.nvme_read = bytes_from(from.nvme_read(), "nvme read");
  schedule.nvme_write = bytes_from(from.nvme_write(), "nvme write");
  schedule.host_to_device = bytes_from(from.host_to_device(), "host to device");
  schedule.device_to_host = bytes_from(from.device_to_host(), "device to host");
  round.predicted_seconds = seconds_from(from.predicted_seconds(), "predicted time");
  return round;
}

void facts_to_record(const SavedTrace& trace, proto::TraceRecord& to) {
  for (const ObjectFacts& facts : trace.objects) {
    proto::TraceObject& object = *to.add_objects();
    object.set_name(facts.name);
    object.set_size(facts.size.count());
    object.set_floor(to_record(facts.floor));
    object.set_home(facts.home ? to_record(*facts.home) : proto::TRACE_TIER_NONE);
  }
  for (const Operation& operation : trace.trace.operations) {
    proto::TraceOperation& record = *to.add_operations();
    record.set_name(operation.name);
    record.set_lane(operation.lane == Lane::compute ? proto::TraceOperation::COMPUTE
                                                    : proto::TraceOperation::CPU_OPTIMIZER);
    for (const Use& use : operation.uses) {
      proto::TraceUse& use_record = *record.add_uses();
      use_record.set_object(index_of(use.object));
      use_record.set_tier(to_record(use.tier));
      use_record.set_access(to_record(use.access));
      use_record.set_discard_after(use.discard_after);
    }
    record.set_seconds(operation.seconds);
    record.set_in_order(operation.in_order);
    record.set_starts_pass(operation.starts_pass);
  }
}

}  // namespace

proto::TraceRecord to_record(const SavedTrace& trace) {
  proto::TraceRecord to;
  to.set_description(trace.description);
  to.set_step(trace.step);
  to.set_policy(trace.policy);
  to.set_name(trace.trace.name);
  facts_to_record(trace, to);
  to.mutable_budgets()->set_device(trace.budgets.device.count());
  to.mutable_budgets()->set_host(trace.budgets.host.count());
  to.mutable_budgets()->set_alignment(trace.budgets.alignment.count());
  proto::TraceRates& rates = *to.mutable_rates();
  rates.set_nvme_read(trace.rates.nvme_read);
  rates.set_nvme_write(trace.rates.nvme_write);
  rates.set_host_to_device(trace.rates.host_to_device);
  rates.set_device_to_host(trace.rates.device_to_host);
  rates.set_nvme_latency(trace.rates.nvme_latency);
  rates.set_link_latency(trace.rates.link_latency);
  rates.set_nvme_both(trace.rates.nvme_both);
  rates.set_nvme_side_by_side(trace.rates.nvme_side_by_side.count());
  for (const SavedRound& round : trace.rounds) {
    to_record(round, *to.add_rounds());
  }
  return to;
}

SavedTrace from_record(const proto::TraceRecord& record) {
  SavedTrace trace;
  trace.description = record.description();
  trace.step = record.step();
  trace.policy = record.policy();
  trace.trace.name = record.name();
  for (const proto::TraceObject& object : record.objects()) {
    trace.objects.push_back(object_facts_from(object));
  }
  for (const proto::TraceOperation& operation : record.operations()) {
    trace.trace.operations.push_back(operation_from(operation));
  }
  trace.budgets.device = bytes_from(record.budgets().device(), "device budget");
  trace.budgets.host = bytes_from(record.budgets().host(), "host budget");
  trace.budgets.alignment = Bytes(record.budgets().alignment());
  if (trace.budgets.alignment.count() > kLargestAlignment) {
    throw InputError(fmt::format("alignment {} is out of range", trace.budgets.alignment));
  }
  trace.rates.nvme_read = rate_from(record.rates().nvme_read(), "nvme read");
  trace.rates.nvme_write = rate_from(record.rates().nvme_write(), "nvme write");
  trace.rates.host_to_device = rate_from(record.rates().host_to_device(), "host to device");
  trace.rates.device_to_host = rate_from(record.rates().device_to_host(), "device to host");
  trace.rates.nvme_latency = seconds_from(record.rates().nvme_latency(), "nvme latency");
  trace.rates.link_latency = seconds_from(record.rates().link_latency(), "link latency");
  if (record.rates().has_nvme_side_by_side()) {
    trace.rates.nvme_side_by_side =
        bytes_from(record.rates().nvme_side_by_side(), "nvme side by side");
  }
  if (record.rates().nvme_both() != 0) {
    trace.rates.nvme_both = rate_from(record.rates().nvme_both(), "nvme both");
  }
  check_trace(trace.trace, trace.objects, trace.budgets.alignment);
  for (const proto::TraceRound& round : record.rounds()) {
    trace.rounds.push_back(round_from(round, trace));
  }
  if (trace.rounds.empty()) {
    throw InputError("it holds no round");
  }
  return trace;
}

}  // namespace headrace::scheduler
