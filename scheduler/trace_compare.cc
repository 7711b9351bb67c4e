#include "scheduler/trace_compare.h"

#include <fmt/format.h>

#include <map>

namespace headrace::scheduler {

namespace {

/// What makes an operation the same in two traces. Names may hold any sign, so lengths go along.
std::string key_of(const Operation& operation, const std::vector<ObjectFacts>& objects) {
  std::string key =
      fmt::format("{}:{}:{}:{}{}", operation.name.size(), operation.name, to_string(operation.lane),
                  operation.in_order ? 1 : 0, operation.starts_pass ? 1 : 0);
  for (const Use& use : operation.uses) {
    const std::string& name = objects[index_of(use.object)].name;
    key += fmt::format("|{}:{}:{}:{}:{}", name.size(), name, to_string(use.tier),
                       static_cast<int>(use.access), use.discard_after ? 1 : 0);
  }
  return key;
}

/// The operations as numbers that are equal where the keys are.
std::vector<uint32_t> numbers_of(const SavedTrace& trace, std::map<std::string, uint32_t>& known) {
  std::vector<uint32_t> numbers;
  for (const Operation& operation : trace.trace.operations) {
    const auto next = static_cast<uint32_t>(known.size());
    numbers.push_back(known.try_emplace(key_of(operation, trace.objects), next).first->second);
  }
  return numbers;
}

std::map<std::string, const ObjectFacts*> by_name(const std::vector<ObjectFacts>& objects) {
  std::map<std::string, const ObjectFacts*> named;
  for (const ObjectFacts& facts : objects) {
    named.emplace(facts.name, &facts);
  }
  return named;
}

void compare_objects(const SavedTrace& first, const SavedTrace& second,
                     TraceDifference& difference) {
  const auto in_first = by_name(first.objects);
  const auto in_second = by_name(second.objects);
  for (const ObjectFacts& facts : first.objects) {
    const auto other = in_second.find(facts.name);
    if (other == in_second.end()) {
      difference.only_in_first.push_back(facts.name);
    } else if (!(*other->second == facts)) {
      difference.changed.push_back(facts.name);
    }
  }
  for (const ObjectFacts& facts : second.objects) {
    if (!in_first.contains(facts.name)) {
      difference.only_in_second.push_back(facts.name);
    }
  }
}

/// Operations outside the ranges stand side by side.
size_t count_other_durations(const SavedTrace& first, const SavedTrace& second,
                             const std::vector<DifferingRange>& ranges) {
  size_t count = 0;
  size_t a = 0;
  size_t b = 0;
  const auto walk_to = [&](size_t end) {
    for (; a < end; ++a, ++b) {
      count += first.trace.operations[a].seconds != second.trace.operations[b].seconds ? 1 : 0;
    }
  };
  for (const DifferingRange& range : ranges) {
    walk_to(range.first_begin);
    a = range.first_end;
    b = range.second_end;
  }
  walk_to(first.trace.operations.size());
  return count;
}

}  // namespace

TraceDifference compare_traces(const SavedTrace& first, const SavedTrace& second) {
  TraceDifference difference;
  std::map<std::string, uint32_t> known;
  const std::vector<uint32_t> numbers = numbers_of(first, known);
  difference.operations = differing_ranges(numbers, numbers_of(second, known));
  difference.other_durations = count_other_durations(first, second, difference.operations);
  compare_objects(first, second, difference);
  SavedTrace described = second;
  described.description = first.description;
  difference.is_equal = first == described;
  return difference;
}

}  // namespace headrace::scheduler
