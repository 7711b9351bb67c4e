#include "base/system_file.h"

#include <gtest/gtest.h>

#include "tests/support/fake_system.h"

namespace headrace {
namespace {

TEST(SystemFile, LinesFieldsAndNumbers) {
  test::FakeSystem system;
  system.put("/a", "  first \t\nCapEff:\t00ff\nMemTotal:       16 kB\nMemTotalX: 3\nempty:\n");
  const std::string file = system.root() + "/a";
  EXPECT_EQ(first_line_of(file), "first");
  EXPECT_EQ(field_of(file, "CapEff"), "00ff");
  EXPECT_EQ(number_of(file, "MemTotal"), 16);
  EXPECT_EQ(number_of(file, "MemTotalX"), 3);
  EXPECT_EQ(field_of(file, "empty"), "");
  EXPECT_EQ(field_of(file, "Mem"), std::nullopt) << "a part of a name is no name";
  EXPECT_EQ(number_of(file), std::nullopt);
}

TEST(SystemFile, WhatIsMissingSaysNothing) {
  EXPECT_EQ(first_line_of("/no/such/file"), "");
  EXPECT_EQ(field_of("/no/such/file", "x"), std::nullopt);
  EXPECT_EQ(number_of("/no/such/file"), std::nullopt);
}

TEST(SystemFile, NumbersInTexts) {
  EXPECT_EQ(number_in("max"), std::nullopt);
  EXPECT_EQ(number_in("9223372036854771712"), 9223372036854771712);
  EXPECT_EQ(number_in("99999999999999999999999"), std::nullopt) << "does not fit";
  EXPECT_EQ(number_in("about 12 kB"), 12);
}

}  // namespace
}  // namespace headrace
