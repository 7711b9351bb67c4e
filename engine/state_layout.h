#pragma once

#include <string>

#include "base/dtype.h"
#include "engine/state_format.h"
#include "model/tensor_part.h"
#include "proto/run_state.pb.h"
#include "tiers/generations.h"

namespace headrace::engine {

/// "f32", "bf16" or "f16"; InputError for another text.
DType dtype_from(const std::string& text);
std::string to_string(MasterPlace place);
/// The format that a stored layout describes. InputError for one that cannot be.
StateFormat state_format_of(const proto::StateLayout& layout);
/// InputError where the layout contradicts itself, so that arithmetic on its offsets and counts
/// can neither overflow nor leave an array. Stored layouts are treated as hostile.
void check_layout(const proto::StateLayout& layout);
/// What the module has of the parameter; of a layout that was checked.
model::TensorPart part_of(const proto::StoredParameter& parameter);
/// Throws the InputError of a layout that cannot be, or that does not fit the objects.
[[noreturn]] void refuse_layout(const std::string& what);

/// What a damaged extent means to the training: "moment 1 of model.norm.weight elements 0 to 63",
/// in the words of the layout, which was checked.
std::string describe_damage(const tiers::Damage& damage, const proto::StateLayout& layout);

}  // namespace headrace::engine
