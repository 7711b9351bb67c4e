#include "aio/drive_wear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>

namespace headrace::aio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A page as the specification has it (NVM Express base specification 2.0, figure 207).
std::array<uint8_t, kHealthLogBytes> page_of_a_used_drive() {
  std::array<uint8_t, kHealthLogBytes> page{};
  page[1] = 0x2b;  // 299 kelvin
  page[2] = 0x01;
  page[3] = 97;
  page[4] = 10;
  page[5] = 12;
  page[32] = 0xff;  // read: not looked at
  // 0x0543'2100 = 88,285,440 units of 1000 sectors of 512 bytes are written.
  page[48] = 0x00;
  page[49] = 0x21;
  page[50] = 0x43;
  page[51] = 0x05;
  page[160] = 3;
  return page;
}

TEST(DriveWear, IsReadFromTheHealthLog) {
  const Wear wear = wear_of_log(page_of_a_used_drive());
  EXPECT_EQ(wear.percent_used, 12);
  EXPECT_EQ(wear.bytes_written, 88'285'440.0 * 1000 * 512);
  EXPECT_EQ(wear.spare_percent, 97);
  EXPECT_EQ(wear.spare_needed, 10);
  EXPECT_EQ(wear.media_errors, 3);
  EXPECT_THAT(wear.warnings, IsEmpty());
  EXPECT_EQ(wear.text(),
            "12 % of the rated endurance is used, 45.2 TB written, about 3.8 TB per percent, "
            "97 % of its reserve is left, 3 times data was lost");
}

TEST(DriveWear, RepeatsWhatTheDriveCallsCritical) {
  auto page = page_of_a_used_drive();
  page[0] = 0x09;
  const Wear wear = wear_of_log(page);
  EXPECT_THAT(wear.warnings, ElementsAre(HasSubstr("reserve"), HasSubstr("no more writes")));
  EXPECT_THAT(wear.text(), HasSubstr("the drive warns: it accepts no more writes"));
  page[0] = 0xff;  // two bits without a meaning yet
  EXPECT_EQ(wear_of_log(page).warnings.size(), 6U);
}

TEST(DriveWear, CountsAboveAllBoundsAreTheLargest) {
  auto page = page_of_a_used_drive();
  page[5] = 255;
  for (size_t i = 0; i < 16; ++i) {
    page[48 + i] = 0xff;
    page[160 + i] = 0xff;
  }
  const Wear wear = wear_of_log(page);
  EXPECT_EQ(wear.percent_used, 255);
  EXPECT_NEAR(wear.bytes_written, 0x1p64 * 512'000, 1e12);
  EXPECT_EQ(wear.media_errors, std::numeric_limits<int64_t>::max());
}

TEST(DriveWear, OfAFewPercentNothingIsConcluded) {
  auto page = page_of_a_used_drive();
  page[5] = 4;
  EXPECT_THAT(wear_of_log(page).text(), Not(HasSubstr("per percent")));
}

TEST(DriveWear, WhatCannotBeReadSaysWhy) {
  EXPECT_THAT(read_wear("").text(), HasSubstr("no block device"));
  EXPECT_THAT(read_wear("vda").text(), HasSubstr("vda is not an NVMe device"));
  const Wear missing = read_wear("nvme98n7");
  EXPECT_FALSE(missing.percent_used);
  EXPECT_THAT(missing.text(), HasSubstr("/dev/nvme98n7: "));
}

}  // namespace
}  // namespace headrace::aio
