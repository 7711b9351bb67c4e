#include "tools/plan_sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace headrace::tools {

namespace {

using engine::PlanQuestion;

/// So that no product of counts overflows.
constexpr int64_t kMostCount = 1'000'000;

int64_t count_of(const std::string& text, const char* key) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec == std::errc::result_out_of_range || value > kMostCount) {
    throw UsageError(fmt::format("--sweep {}: {} is more than {}", key, text, kMostCount));
  }
  if (result.ec != std::errc() || result.ptr != end || value <= 0) {
    throw UsageError(fmt::format("--sweep {}: \"{}\" is no positive whole number", key, text));
  }
  return value;
}

/// What may be swept, and what a value of it sets.
struct Key {
  const char* name;
  void (*set)(const std::string& value, PlanQuestion& question);
};

constexpr Key kKeys[] = {
    {"device-memory",
     [](const std::string& value, PlanQuestion& question) {
       if (!question.options.memory.device_memory) {
         throw UsageError(
             "--sweep device-memory: this run has no device; give --device-memory too");
       }
       question.options.memory.device_memory = parse_bytes(value, "--sweep device-memory");
     }},
    {"host-memory",
     [](const std::string& value, PlanQuestion& question) {
       question.options.memory.host_memory = parse_bytes(value, "--sweep host-memory");
     }},
    {"micro-batch",
     [](const std::string& value, PlanQuestion& question) {
       question.options.shape.batch = count_of(value, "micro-batch");
     }},
    {"gradient-accumulation",
     [](const std::string& value, PlanQuestion& question) {
       question.options.memory.micro_batches = count_of(value, "gradient-accumulation");
     }},
    {"seq-len",
     [](const std::string& value, PlanQuestion& question) {
       question.options.shape.seq = count_of(value, "seq-len");
       model::check_sequence_length(question.config, question.options.shape.seq);
     }},
};

const Key* find_key(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kKeys), std::end(kKeys),
                                         [&](const Key& key) { return name == key.name; });
  return found == std::end(kKeys) ? nullptr : found;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

}  // namespace

Sweep::Sweep(const std::vector<std::string>& texts) {
  if (texts.size() > 2) {
    throw UsageError(fmt::format("--sweep: {} keys; a table has at most two", texts.size()));
  }
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    if (find_key(key) == nullptr) {
      throw UsageError(fmt::format("--sweep {}: \"{}\" is unknown; it can be {}", text, key,
                                   fmt::join(known_keys(), ", ")));
    }
    if (equals == std::string::npos || equals + 1 == text.size()) {
      throw UsageError(
          fmt::format("--sweep {}: the values are missing, as in {}=V1,V2", text, key));
    }
    if (!axes_.empty() && axes_.front().key == key) {
      throw UsageError(fmt::format("--sweep {}: \"{}\" is swept already", text, key));
    }
    axes_.push_back({key, split(text.substr(equals + 1))});
  }
}

std::vector<std::string> Sweep::known_keys() {
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    names.emplace_back(key.name);
  }
  return names;
}

std::vector<std::string> Sweep::keys() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) {
    names.push_back(axis.key);
  }
  return names;
}

std::vector<SweepRow> Sweep::run(const PlanQuestion& question) const {
  std::vector<SweepRow> rows(1);
  std::vector<PlanQuestion> questions{question};
  for (const Axis& axis : axes_) {
    std::vector<SweepRow> more_rows;
    std::vector<PlanQuestion> more_questions;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const std::string& value : axis.values) {
        more_rows.push_back(rows[i]);
        more_rows.back().values.push_back(value);
        more_questions.push_back(questions[i]);
        find_key(axis.key)->set(value, more_questions.back());
      }
    }
    rows = std::move(more_rows);
    questions = std::move(more_questions);
  }
  std::vector<engine::PlanAnswer> answers = engine::plan_all(questions, engine::PlanDepth::full);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].answer = std::move(answers[i]);
  }
  return rows;
}

}  // namespace headrace::tools
