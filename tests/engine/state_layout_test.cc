// Stored layouts are treated as hostile.
#include "engine/state_layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace headrace::engine {
namespace {

/// One module of 8 elements, all of them of one parameter, which has more of them elsewhere.
proto::StateLayout layout_with(int64_t first) {
  proto::StateLayout layout;
  layout.set_dtype("f32");
  layout.set_master("weight");
  layout.set_moments(2);
  layout.set_moment_dtype("f32");
  proto::StoredModule& module = *layout.add_modules();
  module.set_name("head.1");
  module.set_count(8);
  proto::StoredParameter& parameter = *module.add_parameters();
  parameter.set_name("lm_head.weight");
  parameter.set_count(8);
  parameter.set_first(first);
  proto::StoredShard& shard = *module.add_shards();
  shard.set_count(8);
  return layout;
}

TEST(StateLayout, TheFirstElementOfAParameterIsBounded) {
  EXPECT_NO_THROW(check_layout(layout_with(0)));
  EXPECT_NO_THROW(check_layout(layout_with(int64_t{1} << 40)));
  EXPECT_THROW(check_layout(layout_with(-1)), InputError);
  EXPECT_THROW(check_layout(layout_with(std::numeric_limits<int64_t>::max())), InputError);
}

}  // namespace
}  // namespace headrace::engine
