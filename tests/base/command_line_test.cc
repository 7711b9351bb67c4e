#include "base/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

constexpr int kUsage = 2;

std::optional<int> parse(Command& command, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  return command.parse(static_cast<int>(arguments.size()), arguments.data());
}

/// What is written to stderr about a command line that is refused.
std::string refusal(Command& command, const std::vector<const char*>& arguments) {
  CaptureStderr();
  CaptureStdout();
  EXPECT_EQ(parse(command, arguments), kUsage);
  GetCapturedStdout();
  return GetCapturedStderr();
}

TEST(CommandLine, WholeNumbersOutOfRangeAreRefusedAndTheLargestAreNot) {
  Command command("about");
  int64_t whole = 0;
  std::optional<uint64_t> natural;
  std::vector<int64_t> list;
  command.add_option("--whole", whole);
  command.add_option("--natural", natural);
  command.add_option("--list", list)->delimiter(',');
  EXPECT_THAT(refusal(command, {"--whole", "9223372036854775808"}), HasSubstr("--whole"));
  EXPECT_THAT(refusal(command, {"--natural", "18446744073709551616"}), HasSubstr("--natural"));
  EXPECT_THAT(refusal(command, {"--natural", "-1"}), HasSubstr("--natural"));
  EXPECT_THAT(refusal(command, {"--list", "1,-9223372036854775809"}), HasSubstr("--list"));
  EXPECT_EQ(parse(command, {"--whole", "-9223372036854775808", "--natural", "18446744073709551615",
                            "--list", "1,-2"}),
            std::nullopt);
  EXPECT_EQ(whole, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(natural, std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(list, ElementsAre(1, -2));
}

TEST(CommandLine, OptionsSetVariablesOfEveryType) {
  Command command("about");
  std::string text;
  int64_t whole = 0;
  double real = 0;
  bool flag = false;
  std::optional<uint64_t> given;
  std::optional<double> left_out;
  std::vector<std::string> list;
  command.add_option("--text", text);
  command.add_option("--whole", whole);
  command.add_option("--real", real);
  command.add_flag("--flag", flag, "");
  command.add_option("--given", given);
  command.add_option("--left-out", left_out);
  command.add_option("--list", list)->delimiter(',');
  EXPECT_EQ(parse(command, {"--text", "a b", "--whole", "-3", "--real", "2.5", "--flag", "--given",
                            "18446744073709551615", "--list", "x,y", "--list", "z"}),
            std::nullopt);
  EXPECT_EQ(text, "a b");
  EXPECT_EQ(whole, -3);
  EXPECT_EQ(real, 2.5);
  EXPECT_TRUE(flag);
  EXPECT_EQ(given, UINT64_MAX);
  EXPECT_FALSE(left_out);
  EXPECT_THAT(list, ElementsAre("x", "y", "z"));
  EXPECT_EQ(command.count("--list"), 3U);
  EXPECT_EQ(command.count("--left-out"), 0U);
}

TEST(CommandLine, WhatIsWrongIsNamedAndEndsTheProcess) {
  Command command("about");
  int number = 1;
  std::string mode;
  double share = 0;
  std::string file;
  command.add_option("--number", number)->check_positive();
  command.add_option("--share", share)->check_range(0.0, 0.9);
  command.add_option("--mode", mode)->check_one_of({"read", "write"});
  command.add_option("--file", file)->needs("--mode");
  EXPECT_THAT(refusal(command, {"--number", "0"}), HasSubstr("--number"));
  EXPECT_THAT(refusal(command, {"--number", "many"}), HasSubstr("--number"));
  EXPECT_THAT(refusal(command, {"--share", "1"}), HasSubstr("--share"));
  EXPECT_THAT(refusal(command, {"--share", "nan"}), HasSubstr("--share: nan is not a number"));
  EXPECT_THAT(refusal(command, {"--mode", "erase"}), HasSubstr("{read,write}"));
  EXPECT_THAT(refusal(command, {"--file", "x"}), HasSubstr("--mode"));
  EXPECT_THAT(refusal(command, {"--unknown"}), HasSubstr("--unknown"));
  EXPECT_EQ(parse(command, {"--file", "x", "--mode", "read", "--share", "0.9"}), std::nullopt);
  command.add_option("--must", file)->required();
  EXPECT_THAT(refusal(command, {}), HasSubstr("--must is required"));
}

TEST(CommandLine, AChoiceGivesWhatBelongsToItsText) {
  enum class Colour { red = 7, blue = 9 };
  Command command("about");
  std::optional<Colour> colour;
  command
      .add_choice("--colour", colour,
                  std::map<std::string, Colour>{{"red", Colour::red}, {"blue", Colour::blue}}, "")
      ->option_text("red|blue");
  EXPECT_EQ(parse(command, {}), std::nullopt);
  EXPECT_FALSE(colour);
  EXPECT_EQ(parse(command, {"--colour", "blue"}), std::nullopt);
  EXPECT_EQ(colour, Colour::blue);
  EXPECT_THAT(refusal(command, {"--colour", "green"}), HasSubstr("green not in {blue,red}"));
  EXPECT_THAT(refusal(command, {"--colour", "9"}), HasSubstr("9 not in {blue,red}"));
}

TEST(CommandLine, TheChosenSubcommandRunsAndItsErrorsPass) {
  std::string ran;
  const auto make = [&](Command& command) {
    command.require_subcommand(1);
    command.add_subcommand("one", "")->callback([&] { ran += "one"; });
    command.add_subcommand("two", "")->callback([] { throw InputError("no"); });
  };
  Command command("about");
  make(command);
  EXPECT_EQ(parse(command, {"one"}), std::nullopt);
  EXPECT_EQ(ran, "one");
  EXPECT_THROW(parse(command, {"two"}), InputError);
  EXPECT_THAT(refusal(command, {}), HasSubstr("subcommand"));
}

TEST(CommandLine, HelpAndVersionEndTheProcessWell) {
  Command command("What it is about");
  int number = 42;
  command.add_option("--number", number, "Of things")->capture_default_str()->option_text("N");
  command.set_version_flag("--version", "1.2.3");
  command.footer("Exit codes");
  CaptureStdout();
  EXPECT_EQ(parse(command, {"--help"}), 0);
  const std::string help = GetCapturedStdout();
  for (const char* part : {"What it is about", "--number N", "Of things", "Exit codes"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  CaptureStdout();
  EXPECT_EQ(parse(command, {"--version"}), 0);
  EXPECT_EQ(GetCapturedStdout(), "1.2.3\n");
}

}  // namespace
}  // namespace headrace
