#include "base/utc.h"

#include <gtest/gtest.h>

#include <limits>

namespace headrace {
namespace {

// Expected: `date -u -d @SECONDS`.
TEST(Utc, WritesTheDateWhateverTheTimeZone) {
  EXPECT_EQ(utc_text(0, "%Y-%m-%d %H:%M:%S"), "1970-01-01 00:00:00");
  EXPECT_EQ(utc_text(1'709'209'845, "%Y-%m-%dT%H:%M:%SZ"), "2024-02-29T12:30:45Z");
  EXPECT_EQ(utc_text(-1, "%Y%m%dT%H%M%S"), "19691231T235959");
}

TEST(Utc, IsEmptyForAYearThatDoesNotFit) {
  EXPECT_EQ(utc_text(std::numeric_limits<std::time_t>::max(), "%Y"), "");
}

}  // namespace
}  // namespace headrace
