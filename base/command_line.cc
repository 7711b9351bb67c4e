#include "base/command_line.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace headrace {

namespace {

/// CLI11's comparisons let it pass.
const CLI::Validator& not_nan() {
  static const CLI::Validator validator(
      [](std::string& text) {
        double number = 0;
        const bool is_nan = CLI::detail::lexical_cast(text, number) && std::isnan(number);
        return is_nan ? text + " is not a number" : std::string();
      },
      "");
  return validator;
}

/// CLI11 lets -1 become the largest number, and takes the largest for what is beyond 64 bits.
template <typename Number>
std::string out_of_range(const std::string& text) {
  errno = 0;
  if constexpr (std::is_signed_v<Number>) {
    std::strtoll(text.c_str(), nullptr, 0);
  } else {
    std::strtoull(text.c_str(), nullptr, 0);
  }
  const bool wraps = std::is_unsigned_v<Number> && text.find('-') != std::string::npos;
  return errno == ERANGE || wraps ? text + " is out of range" : std::string();
}

template <typename T>
struct ElementOf {
  using Type = T;
};
template <typename T>
struct ElementOf<std::optional<T>> {
  using Type = T;
};
template <typename T>
struct ElementOf<std::vector<T>> {
  using Type = T;
};

}  // namespace

CommandOption* CommandOption::required() {
  option_->required();
  return this;
}

CommandOption* CommandOption::capture_default_str() {
  option_->capture_default_str();
  return this;
}

CommandOption* CommandOption::option_text(const std::string& text) {
  option_->option_text(text);
  return this;
}

CommandOption* CommandOption::delimiter(char separator) {
  option_->delimiter(separator);
  return this;
}

CommandOption* CommandOption::allow_extra_args(bool allowed) {
  option_->allow_extra_args(allowed);
  return this;
}

CommandOption* CommandOption::needs(const std::string& name) {
  option_->needs(name);
  return this;
}

CommandOption* CommandOption::check_positive() {
  option_->check(CLI::PositiveNumber)->check(not_nan());
  return this;
}

CommandOption* CommandOption::check_not_negative() {
  option_->check(CLI::NonNegativeNumber)->check(not_nan());
  return this;
}

CommandOption* CommandOption::check_range(int low, int high) {
  option_->check(CLI::Range(low, high));
  return this;
}

CommandOption* CommandOption::check_range(double low, double high) {
  option_->check(CLI::Range(low, high))->check(not_nan());
  return this;
}

CommandOption* CommandOption::check_one_of(const std::vector<std::string>& texts) {
  option_->check(CLI::IsMember(texts));
  return this;
}

Command::Command(const std::string& description)
    : root_(std::make_unique<CLI::App>(description)), app_(root_.get()) {}

Command::Command(CLI::App* app) : app_(app) {}

Command::~Command() = default;

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  subcommands_.push_back(std::make_unique<Command>(app_->add_subcommand(name, description)));
  return subcommands_.back().get();
}

void Command::require_subcommand(int minimum) {
  app_->require_subcommand(minimum);
}

void Command::callback(std::function<void()> work) {
  app_->callback(std::move(work));
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

void Command::set_version_flag(const std::string& name, const std::string& version) {
  app_->set_version_flag(name, version);
}

CommandOption* Command::keep(CLI::Option* option) {
  options_.push_back(std::make_unique<CommandOption>(option));
  return options_.back().get();
}

template <typename T>
CommandOption* Command::add_option(const std::string& name, T& variable, const std::string& help) {
  CLI::Option* const added = app_->add_option(name, variable, help);
  using Element = typename ElementOf<T>::Type;
  if constexpr (std::is_integral_v<Element>) {
    added->check(out_of_range<Element>);
  }
  return keep(added);
}

template CommandOption* Command::add_option(const std::string&, std::string&, const std::string&);
template CommandOption* Command::add_option(const std::string&, int&, const std::string&);
template CommandOption* Command::add_option(const std::string&, int64_t&, const std::string&);
template CommandOption* Command::add_option(const std::string&, uint64_t&, const std::string&);
template CommandOption* Command::add_option(const std::string&, double&, const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<int64_t>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<uint64_t>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<double>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::vector<std::string>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::set<std::string>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::vector<int>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::vector<int64_t>&,
                                            const std::string&);

CommandOption* Command::add_flag(const std::string& name, bool& variable, const std::string& help) {
  return keep(app_->add_flag(name, variable, help));
}

CommandOption* Command::add_numbers(const std::string& name,
                                    const std::map<std::string, int64_t>& numbers,
                                    std::function<void(int64_t)> set, const std::string& help) {
  std::vector<std::string> texts;
  texts.reserve(numbers.size());
  for (const auto& [text, number] : numbers) {
    texts.push_back(text);
  }
  CLI::Option* added = app_->add_option_function<std::string>(
      name, [numbers, set = std::move(set)](const std::string& text) { set(numbers.at(text)); },
      help);
  added->check(CLI::IsMember(texts));
  return keep(added);
}

size_t Command::count(const std::string& name) const {
  return app_->count(name);
}

std::optional<int> Command::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    const bool wanted = error.get_exit_code() == 0;
    app_->exit(error);
    return wanted ? 0 : exit_code(ErrorKind::usage);
  }
}

}  // namespace headrace
