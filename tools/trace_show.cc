#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.h"
#include "engine/trace_recording.h"
#include "scheduler/lane_shares.h"
#include "scheduler/lower_bound.h"
#include "tools/text.h"
#include "tools/trace_commands.h"

namespace headrace::tools {

namespace {

using scheduler::Action;
using scheduler::ActionKind;
using scheduler::kLaneCount;
using scheduler::Lane;

constexpr int kColumns = 72;  ///< slices of the time line

struct Arguments {
  std::string file;
  bool json = false;
  bool actions = false;
  bool lanes = false;
};

struct LaneOperations {
  int64_t count = 0;
  double seconds = 0;
};

/// What is shown of a trace: its last round, simulated.
struct Shown {
  explicit Shown(const scheduler::SavedTrace& saved)
      : trace(saved),
        schedule(saved.last().schedule),
        input(saved.input(saved.last())),
        bound(scheduler::lower_bound(input)),
        channels(scheduler::channel_bound(input, schedule)),
        timeline(scheduler::simulate(input, schedule)),
        violations(scheduler::check_schedule(input, schedule)) {
    for (const scheduler::Operation& operation : trace.trace.operations) {
      LaneOperations& lane = operations[static_cast<size_t>(operation.lane)];
      ++lane.count;
      lane.seconds += operation.seconds;
    }
  }

  double busy_share(size_t lane) const {
    return timeline.seconds > 0 ? channels.lane_seconds[lane] / timeline.seconds : 0;
  }

  const scheduler::SavedTrace& trace;
  const scheduler::Schedule& schedule;
  scheduler::CompileInput input;
  scheduler::LowerBound bound;
  scheduler::StepBound channels;
  scheduler::Timeline timeline;
  std::vector<std::string> violations;
  std::array<LaneOperations, kLaneCount> operations;
};

std::string kind_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::transfer:
      return "transfer";
    case ActionKind::operation:
      return "operation";
    case ActionKind::drop:
      return "drop";
    case ActionKind::place:
      return "place";
  }
  return "?";
}

/// "block 3 weights: nvme -> host", "block 3 forward", "drop x from host".
std::string describe(const Shown& shown, const Action& action) {
  if (action.kind == ActionKind::operation) {
    return shown.trace.trace.operations[action.operation].name;
  }
  const std::string& object = shown.trace.objects[index_of(action.object)].name;
  switch (action.kind) {
    case ActionKind::drop:
      return fmt::format("drop {} from {}", object, to_string(action.from));
    case ActionKind::place:
      return fmt::format("place {} in {}", object, to_string(action.to));
    default:
      return fmt::format("{}: {} -> {}", object, to_string(action.from), to_string(action.to));
  }
}

/// Seconds in which an action ran; those without a lane take none.
std::vector<const scheduler::Span*> spans_by_action(const Shown& shown) {
  std::vector<const scheduler::Span*> spans(shown.schedule.actions.size());
  for (const scheduler::Span& span : shown.timeline.spans) {
    spans[span.action] = &span;
  }
  return spans;
}

void print_operations(const Shown& shown) {
  std::string text;
  for (size_t lane = 0; lane < shown.operations.size(); ++lane) {
    const LaneOperations& operations = shown.operations[lane];
    if (operations.count > 0) {
      text += fmt::format(", {} {} ({})", to_string(static_cast<Lane>(lane)), operations.count,
                          format_duration(operations.seconds));
    }
  }
  fmt::print("  operations       {}{}\n", shown.trace.trace.operations.size(), text);
}

void print_objects(const Shown& shown) {
  std::array<Bytes, kTierCount> homes{};
  Bytes inside;
  for (const scheduler::ObjectFacts& facts : shown.trace.objects) {
    (facts.home ? homes[static_cast<size_t>(*facts.home)] : inside) += facts.size;
  }
  std::string text;
  for (size_t tier = 0; tier < homes.size(); ++tier) {
    if (homes[tier] > Bytes(0)) {
      text += fmt::format(", home {} {}", to_string(static_cast<Tier>(tier)),
                          format_bytes(homes[tier]));
    }
  }
  fmt::print("  objects          {}{}, inside the step {}\n", shown.trace.objects.size(), text,
             format_bytes(inside));
}

void print_peak(const char* what, Bytes peak, Bytes budget) {
  fmt::print("  {:<16} {} of {} ({:.1f} %)\n", what, format_bytes(peak), format_bytes(budget),
             budget > Bytes(0)
                 ? 100 * static_cast<double>(peak.count()) / static_cast<double>(budget.count())
                 : 0.0);
}

void print_summary(const Shown& shown) {
  const scheduler::SavedTrace& trace = shown.trace;
  const scheduler::Schedule& schedule = shown.schedule;
  fmt::print("Trace of the {} step, policy {}\n", trace.step, trace.policy);
  fmt::print("  recorded from    {}\n", trace.description);
  print_operations(shown);
  print_objects(shown);
  fmt::print("  round            {}, {} actions\n", trace.last().number, schedule.actions.size());
  fmt::print("  nvme             read {}, write {}, together {}\n",
             with_bound(schedule.nvme_read, shown.bound.nvme_read),
             with_bound(schedule.nvme_write, shown.bound.nvme_write),
             with_bound(schedule.nvme_read + schedule.nvme_write, shown.bound.nvme));
  if (trace.budgets.device > Bytes(0)) {
    fmt::print("  host-device      down {}, up {}, together {}\n",
               with_bound(schedule.host_to_device, shown.bound.host_to_device),
               with_bound(schedule.device_to_host, shown.bound.device_to_host),
               with_bound(schedule.host_to_device + schedule.device_to_host, shown.bound.link));
    print_peak("peak on device", schedule.peak_device, trace.budgets.device);
  }
  print_peak("peak in host", schedule.peak_host, trace.budgets.host);
  fmt::print("  step time        predicted {} (bound {}, {}), busiest lane {} {:.0f} %\n",
             format_duration(shown.timeline.seconds), format_duration(shown.bound.seconds),
             over_bound(shown.timeline.seconds, shown.bound.seconds),
             to_string(shown.channels.lane),
             100 * shown.busy_share(static_cast<size_t>(shown.channels.lane)));
  const scheduler::SavedRound& first = trace.rounds.front();
  if (trace.rounds.size() > 1) {
    fmt::print("  round {:<10} predicted {}, nvme {}, host-device {}\n", first.number,
               format_duration(first.predicted_seconds),
               format_bytes(first.schedule.nvme_read + first.schedule.nvme_write),
               format_bytes(first.schedule.host_to_device + first.schedule.device_to_host));
  }
}

void print_lanes(const Shown& shown) {
  const auto shares = scheduler::lane_shares(shown.input, shown.timeline, kColumns);
  fmt::print("\nLanes over {}; busy: . up to 25 %, : 50 %, + 75 %, # more\n",
             format_duration(shown.timeline.seconds));
  for (size_t lane = 0; lane < static_cast<size_t>(kLaneCount); ++lane) {
    std::string row;
    for (const scheduler::LaneShares& slice : shares) {
      const double share = slice[lane];
      row += share <= 0      ? ' '
             : share <= 0.25 ? '.'
             : share <= 0.5  ? ':'
             : share <= 0.75 ? '+'
                             : '#';
    }
    fmt::print("  {:<14} |{}| {:>3.0f} %\n", to_string(static_cast<Lane>(lane)), row,
               100 * shown.busy_share(lane));
  }
}

void print_actions(const Shown& shown) {
  const auto spans = spans_by_action(shown);
  fmt::print("\n{:>6} {:>12} {:>12} {:<14} action\n", "number", "begin s", "end s", "lane");
  for (size_t i = 0; i < spans.size(); ++i) {
    const std::string text = describe(shown, shown.schedule.actions[i]);
    if (spans[i] == nullptr) {
      fmt::print("{:>6} {:>12} {:>12} {:<14} {}\n", i, "", "", "", text);
    } else {
      fmt::print("{:>6} {:>12.6f} {:>12.6f} {:<14} {}\n", i, spans[i]->begin, spans[i]->end,
                 to_string(spans[i]->lane), text);
    }
  }
}

nlohmann::ordered_json moved_json(Bytes moved, Bytes bound) {
  return {{"bytes", moved.count()}, {"bound", bound.count()}};
}

nlohmann::ordered_json actions_json(const Shown& shown) {
  const auto spans = spans_by_action(shown);
  auto list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < spans.size(); ++i) {
    const Action& action = shown.schedule.actions[i];
    nlohmann::ordered_json entry{{"kind", kind_name(action.kind)}};
    if (action.kind == ActionKind::operation) {
      entry["operation"] = shown.trace.trace.operations[action.operation].name;
    } else {
      entry["object"] = shown.trace.objects[index_of(action.object)].name;
    }
    if (action.kind == ActionKind::transfer || action.kind == ActionKind::drop) {
      entry["from"] = to_string(action.from);
    }
    if (action.kind == ActionKind::transfer || action.kind == ActionKind::place) {
      entry["to"] = to_string(action.to);
      entry["offset"] = action.offset;
    }
    if (spans[i] != nullptr) {
      entry["lane"] = to_string(spans[i]->lane);
      entry["begin"] = spans[i]->begin;
      entry["end"] = spans[i]->end;
    }
    entry["after"] = action.after;
    list.push_back(std::move(entry));
  }
  return list;
}

nlohmann::ordered_json to_json(const Shown& shown, const Arguments& arguments) {
  const scheduler::Schedule& schedule = shown.schedule;
  const scheduler::LowerBound& bound = shown.bound;
  nlohmann::ordered_json json;
  json["description"] = shown.trace.description;
  json["step"] = shown.trace.step;
  json["policy"] = shown.trace.policy;
  json["round"] = shown.trace.last().number;
  json["operations"] = shown.trace.trace.operations.size();
  json["objects"] = shown.trace.objects.size();
  json["moved"] = {
      {"nvme_read", moved_json(schedule.nvme_read, bound.nvme_read)},
      {"nvme_write", moved_json(schedule.nvme_write, bound.nvme_write)},
      {"nvme", moved_json(schedule.nvme_read + schedule.nvme_write, bound.nvme)},
      {"host_to_device", moved_json(schedule.host_to_device, bound.host_to_device)},
      {"device_to_host", moved_json(schedule.device_to_host, bound.device_to_host)},
      {"link", moved_json(schedule.host_to_device + schedule.device_to_host, bound.link)}};
  json["peak"] = {{"device", schedule.peak_device.count()}, {"host", schedule.peak_host.count()}};
  json["budget"] = {{"device", shown.trace.budgets.device.count()},
                    {"host", shown.trace.budgets.host.count()}};
  json["seconds"] = shown.timeline.seconds;
  json["bound_seconds"] = bound.seconds;
  json["busiest_lane"] = to_string(shown.channels.lane);
  const auto shares = scheduler::lane_shares(shown.input, shown.timeline, kColumns);
  for (size_t lane = 0; lane < static_cast<size_t>(kLaneCount); ++lane) {
    nlohmann::ordered_json entry{{"operations", shown.operations[lane].count},
                                 {"operation_seconds", shown.operations[lane].seconds},
                                 {"busy_seconds", shown.channels.lane_seconds[lane]}};
    for (size_t slice = 0; arguments.lanes && slice < shares.size(); ++slice) {
      entry["busy_shares"].push_back(shares[slice][lane]);
    }
    json["lanes"][std::string(to_string(static_cast<Lane>(lane)))] = std::move(entry);
  }
  json["violations"] = shown.violations;
  if (arguments.actions) {
    json["actions"] = actions_json(shown);
  }
  return json;
}

void run(const Arguments& arguments) {
  const scheduler::SavedTrace trace = engine::load_trace(arguments.file);
  const Shown shown(trace);
  if (arguments.json) {
    fmt::print("{}\n", to_json(shown, arguments)
                           .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  print_summary(shown);
  if (!shown.violations.empty()) {
    log_warning("{}: the schedule is not sound: {}", arguments.file, shown.violations.front());
  }
  if (arguments.lanes) {
    print_lanes(shown);
  }
  if (arguments.actions) {
    print_actions(shown);
  }
}

}  // namespace

void add_trace_show(Command& trace) {
  auto arguments = std::make_shared<Arguments>();
  Command* command =
      trace.add_subcommand("show", "Bytes, peaks and time of a saved trace beside their bounds");
  command->add_option("FILE", arguments->file, "Made by `headrace trace record`")->required();
  command->add_flag("--json", arguments->json, "Everything as JSON");
  command->add_flag("--actions", arguments->actions,
                    "Every action with its simulated begin and end");
  command->add_flag("--lanes", arguments->lanes, "How busy each lane is over the step");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
