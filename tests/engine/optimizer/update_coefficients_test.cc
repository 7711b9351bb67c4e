#include "engine/optimizer/update_coefficients.h"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

/// Exactly, lr * weight_decay is 2^-25 (1 + 2^-29 + 2^-81 - 2^-104). Rounded by itself it loses all
/// but 1 + 2^-29; then 1 less it is a tie in double and another one in fp32, both to 1. A compiler
/// that fuses multiplication and subtraction comes out one unit below, on processors that can.
TEST(UpdateCoefficients, ProductsAreRoundedByThemselves) {
  UpdateOptions options;
  options.lr = 0x1.00000007fffffp-10;
  options.weight_decay = 0x1.0000000000001p-15;
  EXPECT_EQ(1.0F - AdamCoefficients(options).keep, 0.0F);
  EXPECT_EQ(1.0F - FusedAdamCoefficients(options).keep, 0.0F);
  EXPECT_EQ(1.0F - LionCoefficients(options).keep, 0.0F);
}

}  // namespace
}  // namespace headrace::engine
