#include "scheduler/trace_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/trace_recording.h"
#include "tools/trace_commands.h"

namespace headrace::tools {

namespace {

using scheduler::SavedTrace;

constexpr size_t kContext = 2;  ///< operations shown before a difference
constexpr size_t kRanges = 5;   ///< differences shown
constexpr size_t kListed = 8;   ///< operations of a difference, or objects, that are listed

struct Arguments {
  std::string first;
  std::string second;
};

void print_operations(const SavedTrace& trace, size_t begin, size_t end, char sign) {
  const size_t shown = std::min(end, begin + kListed);
  for (size_t i = begin; i < shown; ++i) {
    const scheduler::Operation& operation = trace.trace.operations[i];
    std::vector<std::string> objects;
    for (const scheduler::Use& use : operation.uses) {
      objects.push_back(trace.objects[index_of(use.object)].name);
    }
    fmt::print("    {} {:>5}  {} ({}) {}\n", sign, i, operation.name, to_string(operation.lane),
               fmt::join(objects, " "));
  }
  if (shown < end) {
    fmt::print("    {}        and {} more\n", sign, end - shown);
  }
}

/// One difference with the operations before it, but not before `from`, and the one at which both
/// rejoin.
void print_range(const SavedTrace& first, const SavedTrace& second,
                 const scheduler::DifferingRange& range, size_t from) {
  print_operations(first, std::max(from, range.first_begin - std::min(kContext, range.first_begin)),
                   range.first_begin, ' ');
  print_operations(first, range.first_begin, range.first_end, '-');
  print_operations(second, range.second_begin, range.second_end, '+');
  if (range.first_end < first.trace.operations.size()) {
    fmt::print("      rejoin at {} and {}: {}\n", range.first_end, range.second_end,
               first.trace.operations[range.first_end].name);
  } else {
    fmt::print("      they do not rejoin\n");
  }
}

void print_ranges(const SavedTrace& first, const SavedTrace& second,
                  const scheduler::TraceDifference& difference) {
  const auto& ranges = difference.operations;
  if (ranges.empty()) {
    fmt::print("  operations       the same {}\n", first.trace.operations.size());
  } else {
    size_t removed = 0;
    size_t added = 0;
    for (const scheduler::DifferingRange& range : ranges) {
      removed += range.first_end - range.first_begin;
      added += range.second_end - range.second_begin;
    }
    fmt::print(
        "  operations       {} and {}; they diverge first at {}; in {} places, {} only in the "
        "first "
        "and {} only in the second\n",
        first.trace.operations.size(), second.trace.operations.size(), ranges.front().first_begin,
        ranges.size(), removed, added);
    for (size_t i = 0; i < std::min(ranges.size(), kRanges); ++i) {
      print_range(first, second, ranges[i], i > 0 ? ranges[i - 1].first_end : 0);
    }
    if (ranges.size() > kRanges) {
      fmt::print("      and {} more places\n", ranges.size() - kRanges);
    }
  }
  if (difference.other_durations > 0) {
    fmt::print("  durations        {} operations have other estimates\n",
               difference.other_durations);
  }
}

void print_objects(const char* what, const std::vector<std::string>& names) {
  if (names.empty()) {
    return;
  }
  const size_t shown = std::min(names.size(), kListed);
  fmt::print("  {:<16} {}{}\n", what,
             fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "),
             shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "");
}

void print_bytes(const char* what, Bytes first, Bytes second) {
  const int64_t more = second.count() - first.count();
  fmt::print("  {:<16} {} -> {}{}\n", what, format_bytes(first), format_bytes(second),
             more == 0 ? ", equal"
                       : fmt::format(" ({}{})", more > 0 ? "+" : "-",
                                     format_bytes(Bytes(more > 0 ? more : -more))));
}

template <class T>
void print_where_other(const char* what, const T& first, const T& second) {
  if (first != second) {
    fmt::print("  {:<16} {} -> {}\n", what, first, second);
  }
}

void print_inputs(const SavedTrace& first, const SavedTrace& second) {
  print_where_other("step", first.step, second.step);
  print_where_other("policy", first.policy, second.policy);
  print_where_other("device budget", format_bytes(first.budgets.device),
                    format_bytes(second.budgets.device));
  print_where_other("host budget", format_bytes(first.budgets.host),
                    format_bytes(second.budgets.host));
  const auto per_second = [](double rate) {
    return format_bytes(Bytes(static_cast<int64_t>(rate))) + "/s";
  };
  const scheduler::Rates& a = first.rates;
  const scheduler::Rates& b = second.rates;
  print_where_other("nvme read rate", per_second(a.nvme_read), per_second(b.nvme_read));
  print_where_other("nvme write rate", per_second(a.nvme_write), per_second(b.nvme_write));
  print_where_other("nvme rate of both", per_second(a.nvme_both), per_second(b.nvme_both));
  print_where_other("rate to device", per_second(a.host_to_device), per_second(b.host_to_device));
  print_where_other("rate to host", per_second(a.device_to_host), per_second(b.device_to_host));
}

void print_figures(const SavedTrace& first, const SavedTrace& second) {
  const scheduler::Schedule& a = first.last().schedule;
  const scheduler::Schedule& b = second.last().schedule;
  print_bytes("nvme read", a.nvme_read, b.nvme_read);
  print_bytes("nvme write", a.nvme_write, b.nvme_write);
  print_bytes("host to device", a.host_to_device, b.host_to_device);
  print_bytes("device to host", a.device_to_host, b.device_to_host);
  print_bytes("peak on device", a.peak_device, b.peak_device);
  print_bytes("peak in host", a.peak_host, b.peak_host);
  const double before = first.last().predicted_seconds;
  const double after = second.last().predicted_seconds;
  fmt::print("  predicted        {} -> {}{}\n", format_duration(before), format_duration(after),
             before > 0 ? fmt::format(" ({:+.1f} %)", 100 * (after / before - 1)) : "");
}

bool run(const Arguments& arguments) {
  const SavedTrace first = engine::load_trace(arguments.first);
  const SavedTrace second = engine::load_trace(arguments.second);
  const scheduler::TraceDifference difference = scheduler::compare_traces(first, second);
  if (difference.is_equal) {
    fmt::print("The traces are equal\n");
    return false;
  }
  fmt::print("The traces differ: {} (-, first) and {} (+, second)\n", arguments.first,
             arguments.second);
  print_inputs(first, second);
  print_ranges(first, second, difference);
  print_objects("only in first", difference.only_in_first);
  print_objects("only in second", difference.only_in_second);
  print_objects("other facts", difference.changed);
  print_figures(first, second);
  return true;
}

}  // namespace

void add_trace_compare(Command& trace, bool& different) {
  auto arguments = std::make_shared<Arguments>();
  Command* command =
      trace.add_subcommand("compare", "Where two saved traces diverge, and what that costs");
  command->add_option("A", arguments->first, "Saved trace")->required();
  command->add_option("B", arguments->second, "Saved trace")->required();
  command->footer(
      "Bytes, peaks and time are of the last round. Exit codes: 0 equal (apart from what the "
      "files\n"
      "say that they were recorded from), 1 different, others as for every command.");
  command->callback([arguments, &different] { different = run(*arguments); });
}

}  // namespace headrace::tools
