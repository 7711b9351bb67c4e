#include "engine/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace headrace::engine {

namespace {

constexpr size_t kIndent = 12;

/// `text` broken at blanks, every line behind `indent` blanks.
std::string wrapped(const std::string& text, size_t indent, size_t columns) {
  std::istringstream words(text);
  std::string word;
  std::string result;
  size_t length = columns;  // the first word begins a line
  while (words >> word) {
    if (length + 1 + word.size() > columns) {
      result += (result.empty() ? "" : "\n") + std::string(indent, ' ') + word;
      length = indent + word.size();
    } else {
      result += " " + word;
      length += 1 + word.size();
    }
  }
  return result;
}

int64_t count(const std::vector<Finding>& findings, Verdict verdict) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return finding.verdict == verdict; });
}

std::string plural(int64_t number, const std::string& what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::note:
      return "note";
    case Verdict::problem:
      return "problem";
  }
  return "unknown";
}

std::string render(const std::vector<Finding>& findings, size_t columns) {
  std::string page;
  std::string section;
  for (const Finding& finding : findings) {
    if (finding.section != section) {
      section = finding.section;
      page += fmt::format("{}{}\n", page.empty() ? "" : "\n", section);
    }
    const std::string head = fmt::format("  [{}]", to_string(finding.verdict));
    const std::string fact =
        wrapped(fmt::format("{}: {}", finding.name, finding.fact), kIndent, columns);
    page += head + std::string(kIndent - std::min(head.size(), kIndent), ' ') +
            fact.substr(std::min(kIndent, fact.size())) + "\n";
    for (const std::string& text : {finding.meaning, finding.change}) {
      if (!text.empty()) {
        page += wrapped(text, kIndent + 2, columns) + "\n";
      }
    }
  }
  return page + fmt::format("\n{}, {}\n", plural(count(findings, Verdict::problem), "problem"),
                            plural(count(findings, Verdict::note), "note"));
}

std::string to_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    nlohmann::ordered_json values = nlohmann::ordered_json::object();
    for (const auto& [name, value] : finding.values) {
      std::visit([&, &key = name](const auto& held) { values[key] = held; }, value);
    }
    list.push_back({{"section", finding.section},
                    {"name", finding.name},
                    {"verdict", to_string(finding.verdict)},
                    {"fact", finding.fact},
                    {"meaning", finding.meaning},
                    {"change", finding.change},
                    {"values", values}});
  }
  const nlohmann::ordered_json page = {{"findings", list},
                                       {"notes", count(findings, Verdict::note)},
                                       {"problems", count(findings, Verdict::problem)}};
  // Texts of the system may be in any encoding.
  return page.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace headrace::engine
