#include "proto/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace headrace::proto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The message of the InputError that the text causes.
std::string problem_of(const std::string& text) {
  try {
    parse_json_text(text, "c.json");
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 80);
  return "";
}

TEST(JsonText, AcceptsComments) {
  const auto parsed = parse_json_text("// one\n{\"a\": /* two */ 1} // three\n", "c.json");
  EXPECT_EQ(parsed["a"], 1);
}

TEST(JsonText, SyntaxErrorsHavePlaceAndReason) {
  struct Case {
    std::string text;
    std::string place;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {"{\"a\": 1,\n}", "c.json:2:1", "no trailing commas"},
      {"{\"a\": [1, 2, ]}", "c.json:1:14", "no trailing commas"},
      {"{\"a\":\n  NaN}", "c.json:2:", "NaN is not a number"},
      {"{\"a\": Infinity}", "c.json:1:", "Infinity is not a number"},
      {"{\"a\": -Infinity}", "c.json:1:", "-Infinity is not a number"},
      {"{\"a\": True}", "c.json:1:", "True is Python"},
      {"{'a': 1}", "c.json:1:2", "double quotes"},
      {"{\"a\": 1", "c.json:1:", "end of input"},
      {"", "c.json:1:1", "end of input"},
      {"{\"a\": 1} x", "c.json:1:", "end of input"},
      {"{\"a\": \"\xff\"}", "c.json:1:", "UTF-8"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(problem_of(c.text), AllOf(HasSubstr(c.place), HasSubstr(c.reason))) << c.text;
  }
}

TEST(JsonText, DuplicateKeysAreNamedWithTheirPath) {
  const std::string text = R"({"a": {"b": 1, "c": {"b": 2}, "b": 3}, "d": [{"x": 1, "x": 2}],
                              "a": 2})";
  EXPECT_THAT(problem_of(text), AllOf(HasSubstr("3 problems"), HasSubstr("\"a.b\""),
                                      HasSubstr("\"d.x\""), HasSubstr("\"a\"")));
}

TEST(JsonText, HostileTextIsRefusedQuickly) {
  EXPECT_THAT(problem_of(std::string(500'000, '[')), HasSubstr("nested deeper"));
  std::string nested;
  for (int i = 0; i < 100'000; ++i) {
    nested += "{\"a\":";
  }
  EXPECT_THAT(problem_of(nested), HasSubstr("nested deeper"));
  EXPECT_THAT(problem_of(std::string(kLongestText + 1, ' ')), HasSubstr("too long"));
  EXPECT_THAT(problem_of("{\"a\": 1e999}"), HasSubstr("1e999"));
}

TEST(JsonText, QuotingIsShortAndPrintable) {
  EXPECT_EQ(in_quotes("abc"), "\"abc\"");
  EXPECT_EQ(in_quotes("a\nb\x1b"), "\"a\\x0ab\\x1b\"");
  EXPECT_LT(in_quotes(std::string(1'000'000, 'x')).size(), 80U);
  // 59 letters, then a character of two bytes that would be cut in half.
  EXPECT_EQ(in_quotes(std::string(59, 'x') + "\xc3\xa4\xc3\xa4"),
            "\"" + std::string(59, 'x') + "...\"");
}

}  // namespace
}  // namespace headrace::proto
