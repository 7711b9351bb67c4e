#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace headrace::engine {

/// Whether a fact about the machine helps or harms a run.
enum class Verdict : uint8_t {
  ok,
  note,     ///< works, but costs speed or room, or is worth knowing
  problem,  ///< a run will fail or be far slower than the machine allows
};
/// "ok", "note", "problem".
const char* to_string(Verdict verdict);

/// One fact about this machine, what it means for a run, and how to change it.
struct Finding {
  using Value = std::variant<bool, int64_t, double, std::string>;

  std::string section;  ///< "memory"
  std::string name;     ///< "huge pages"; unique in its section
  Verdict verdict = Verdict::ok;
  std::string fact{};     ///< what is there
  std::string meaning{};  ///< for a run
  std::string change{};   ///< how; empty: nothing to change
  /// The same for programs. Sizes are bytes, rates bytes per second.
  std::vector<std::pair<std::string, Value>> values{};
};

/// One page for people, lines of at most `columns` where words allow it, with a count of the
/// verdicts below.
std::string render(const std::vector<Finding>& findings, size_t columns = 100);

/// {"findings": [{"section", "name", "verdict", "fact", "meaning", "change", "values"}], "notes",
/// "problems"}, indented.
std::string to_json(const std::vector<Finding>& findings);

}  // namespace headrace::engine
