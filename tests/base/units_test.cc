#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace headrace {
namespace {

TEST(Units, AddressesGoUpToTheNextMultiple) {
  alignas(64) std::byte memory[192];
  for (int64_t at = 0; at <= 128; ++at) {
    const int64_t expected = (at + 63) / 64 * 64;
    EXPECT_EQ(align_up(memory + at, 64) - memory, expected) << at;
  }
}

TEST(Units, ArithmeticIsChecked) {
  const Bytes most(std::numeric_limits<int64_t>::max());
  EXPECT_EQ((Bytes(40) + Bytes(2)).count(), 42);
  EXPECT_THROW(most + Bytes(1), InputError);
  EXPECT_THROW(most * 2, InputError);
  EXPECT_THROW(Bytes(std::numeric_limits<int64_t>::min()) - Bytes(1), InputError);
  EXPECT_THROW(align_up(most, Bytes(4096)), InputError);
}

TEST(Units, AlignUpGivesTheSmallestMultipleNotBelow) {
  for (int64_t value = 0; value < 200; ++value) {
    for (const int64_t alignment : {1, 2, 7, 64}) {
      const int64_t up = align_up(value, alignment);
      EXPECT_EQ(up % alignment, 0);
      EXPECT_GE(up, value);
      EXPECT_LT(up - value, alignment);
    }
  }
}

TEST(Units, ParseBytesTakesBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("64MiB", "x").count(), 64LL << 20);
  EXPECT_EQ(parse_bytes("1.5 GiB", "x").count(), 3LL << 29);
  EXPECT_EQ(parse_bytes("2GB", "x").count(), 2'000'000'000);
  EXPECT_EQ(parse_bytes("4k", "x").count(), 4096);
  EXPECT_EQ(parse_bytes("1T", "x").count(), 1LL << 40);
  EXPECT_EQ(parse_bytes("4096", "x").count(), 4096);
  EXPECT_EQ(parse_bytes("12 B", "x").count(), 12);
}

TEST(Units, ParseBytesRefusesEverythingElseAndNamesTheSetting) {
  for (const char* text :
       {"", "MiB", "-1", "nan", "inf", "1e40", "5 parsecs", "1KiBs", "0x10", "1..2"}) {
    try {
      parse_bytes(text, "--host-memory");
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("--host-memory"), std::string::npos);
    }
  }
}

TEST(Units, FormatsForPeople) {
  EXPECT_EQ(format_bytes(Bytes(512)), "512 B");
  EXPECT_EQ(format_bytes(Bytes(3LL << 29)), "1.50 GiB");
  EXPECT_EQ(format_count(134'515'008), "135 M");
  EXPECT_EQ(format_duration(0.045), "45 ms");
  EXPECT_EQ(format_duration(200), "3 min 20 s");
  EXPECT_EQ(format_duration(3720), "1 h 02 min");
}

}  // namespace
}  // namespace headrace
