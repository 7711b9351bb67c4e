// Stored layouts are treated as hostile.
#include "engine/state_layout.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

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

/// 200 elements of one parameter: 8-bit moments at 0 and 256, their scales at 512 and 576.
TEST(StateLayout, DamageTo8BitMomentsIsDescribed) {
  proto::StateLayout layout = layout_with(0);
  layout.set_moment_dtype("u8");
  proto::StoredModule& module = *layout.mutable_modules(0);
  module.set_count(200);
  module.mutable_parameters(0)->set_count(200);
  module.mutable_shards(0)->set_count(200);
  module.mutable_shards(0)->set_state("s");
  ASSERT_NO_THROW(check_layout(layout));
  const auto described = [&](int64_t offset, int64_t length) {
    tiers::Damage damage;
    damage.object = "s";
    damage.value_offset = offset;
    damage.extent.length = Bytes(length);
    return describe_damage(damage, layout);
  };
  EXPECT_EQ(described(256 + 10, 5), "moment 2 of lm_head.weight elements 10 to 14");
  EXPECT_EQ(described(512 + 1, 1), "scales of moment 1 of lm_head.weight elements 64 to 127");
  EXPECT_EQ(described(576 + 3, 1), "scales of moment 2 of lm_head.weight elements 192 to 199");
  EXPECT_EQ(described(576 + 4, 20), "no part of a parameter");
  layout.set_dtype("u8");
  EXPECT_THROW(check_layout(layout), InputError);
}

/// Two columns of the four rows of a matrix that has six.
proto::StateLayout layout_of_columns() {
  proto::StateLayout layout = layout_with(2);
  proto::StoredParameter& parameter = *layout.mutable_modules(0)->mutable_parameters(0);
  parameter.add_shape(4);
  parameter.add_shape(6);
  parameter.set_columns(2);
  return layout;
}

TEST(StateLayout, ColumnsAreThoseOfAMatrix) {
  EXPECT_NO_THROW(check_layout(layout_of_columns()));
  const auto refused = [](const std::function<void(proto::StoredParameter&)>& change) {
    proto::StateLayout layout = layout_of_columns();
    change(*layout.mutable_modules(0)->mutable_parameters(0));
    EXPECT_THROW(check_layout(layout), InputError);
  };
  refused([](proto::StoredParameter& parameter) { parameter.set_columns(-2); });
  refused([](proto::StoredParameter& parameter) { parameter.set_columns(3); });
  refused([](proto::StoredParameter& parameter) { parameter.set_first(5); });
  refused([](proto::StoredParameter& parameter) { parameter.set_count(7); });
  refused([](proto::StoredParameter& parameter) { parameter.set_shape(0, 5); });
  refused([](proto::StoredParameter& parameter) { parameter.set_shape(0, 0); });
  refused([](proto::StoredParameter& parameter) { parameter.set_shape(1, 1); });
  refused([](proto::StoredParameter& parameter) { parameter.clear_shape(); });
  refused([](proto::StoredParameter& parameter) {
    parameter.set_shape(1, std::numeric_limits<int64_t>::max());
  });
}

TEST(StateLayout, ColumnsAreFoundInTheirMatrix) {
  const proto::StateLayout layout = layout_of_columns();
  const model::TensorPart part = part_of(layout.modules(0).parameters(0));
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < part.count; ++i) {
    elements.push_back(part.element(i));
  }
  EXPECT_EQ(elements, (std::vector<int64_t>{2, 3, 8, 9, 14, 15, 20, 21}));
}

}  // namespace
}  // namespace headrace::engine
