#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace headrace {

/// One option of a Command. Each call sets a property and returns the option again.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption* required();
  /// Shows the variable's present value in the help.
  CommandOption* capture_default_str();
  /// Stands in the help for the type of the value.
  CommandOption* option_text(const std::string& text);
  /// Splits one argument into several values.
  CommandOption* delimiter(char separator);
  /// false: each naming of the option takes one argument.
  CommandOption* allow_extra_args(bool allowed);
  /// Only together with the option of this name, which must be there already.
  CommandOption* needs(const std::string& name);

  CommandOption* check_positive();
  CommandOption* check_not_negative();
  /// Both ends belong to it.
  CommandOption* check_range(int low, int high);
  CommandOption* check_range(double low, double high);
  CommandOption* check_one_of(const std::vector<std::string>& texts);

 private:
  CLI::Option* option_;
};

/// A command line with subcommands and options, by CLI11. It stands between the commands and CLI11
/// because each source that includes the latter's headers takes seconds to compile. Variables of
/// options must outlive the parsing. Not thread-safe.
class Command {
 public:
  explicit Command(const std::string& description);
  /// One that CLI11 owns already.
  explicit Command(CLI::App* app);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// Lives as long as this command.
  Command* add_subcommand(const std::string& name, const std::string& description);
  /// `minimum`: as many subcommands must be given.
  void require_subcommand(int minimum);
  /// Runs while parsing, when the command line chose this command; may throw.
  void callback(std::function<void()> work);
  /// The text below the help.
  void footer(const std::string& text);
  void set_version_flag(const std::string& name, const std::string& version);

  /// `name`: "--name", or "NAME" for one that is known by its place. T: those that
  /// command_line.cc lists.
  template <typename T>
  CommandOption* add_option(const std::string& name, T& variable, const std::string& help = "");
  CommandOption* add_flag(const std::string& name, bool& variable, const std::string& help);
  /// One of these texts; `variable` gets what belongs to it.
  template <typename T, typename Choice>
  CommandOption* add_choice(const std::string& name, T& variable,
                            const std::map<std::string, Choice>& choices, const std::string& help) {
    std::map<std::string, int64_t> numbers;
    for (const auto& [text, choice] : choices) {
      numbers[text] = static_cast<int64_t>(choice);
    }
    return add_numbers(
        name, numbers, [&variable](int64_t number) { variable = static_cast<Choice>(number); },
        help);
  }
  /// How many values the option was given.
  size_t count(const std::string& name) const;

  /// Empty: go on. Otherwise help, version or what is wrong was printed, and the process is to end
  /// with this exit code. Throws what a callback throws.
  std::optional<int> parse(int argc, const char* const* argv);

 private:
  CommandOption* keep(CLI::Option* option);
  CommandOption* add_numbers(const std::string& name, const std::map<std::string, int64_t>& numbers,
                             std::function<void(int64_t)> set, const std::string& help);

  std::unique_ptr<CLI::App> root_;  // empty: a subcommand, which CLI11 owns
  CLI::App* app_;
  std::vector<std::unique_ptr<Command>> subcommands_;
  std::vector<std::unique_ptr<CommandOption>> options_;
};

}  // namespace headrace
