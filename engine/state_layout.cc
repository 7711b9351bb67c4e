#include "engine/state_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "engine/optimizer/moment_codes.h"

namespace headrace::engine {

namespace {

/// Elements of a module at most, and of what a parameter has in the modules before it, so that
/// bytes of all of its arrays fit in 64 bits.
constexpr int64_t kLargestModule = int64_t{1} << 56;

/// A range of bytes of one array.
struct ArrayRange {
  std::string name;
  Bytes begin;
  DType dtype = DType::f32;
  int64_t first = 0;  ///< element of the module's packed vector with which it begins
  int64_t count = 0;
  int64_t elements_per_value = 1;  ///< a scale stands for a block
};

/// "model.norm.weight elements 3 to 9, ..." for elements [first, end) of a module's packed vector.
std::string parameters_in(const proto::StoredModule& module, int64_t first, int64_t end) {
  std::string text;
  for (const proto::StoredParameter& parameter : module.parameters()) {
    const int64_t from = std::max(first, parameter.offset());
    const int64_t to = std::min(end, parameter.offset() + parameter.count());
    if (from < to) {
      const model::TensorPart part = part_of(parameter);
      text += fmt::format("{}{} elements {} to {}", text.empty() ? "" : ", ", parameter.name(),
                          part.element(from - parameter.offset()),
                          part.element(to - 1 - parameter.offset()));
      if (parameter.columns() > 0) {
        text += fmt::format(" in columns {} to {}", part.first, part.first + part.run - 1);
      }
    }
  }
  return text;
}

/// The arrays of the object, if this module has it.
std::vector<ArrayRange> arrays_of(const std::string& object, const proto::StoredModule& module,
                                  const proto::StateLayout& layout) {
  const DType dtype = dtype_from(layout.dtype());
  if (object == module.weights()) {
    return {{"weights", Bytes(0), dtype, 0, module.count()}};
  }
  const StateFormat format = state_format_of(layout);
  for (const proto::StoredShard& shard : module.shards()) {
    if (object != shard.state()) {
      continue;
    }
    const StateFormat::Offsets offsets = format.offsets(Elements(shard.count()));
    std::vector<ArrayRange> arrays;
    if (format.master != MasterPlace::weight) {
      const bool is_split = format.master == MasterPlace::split;
      arrays.push_back({is_split ? "low half of the master" : "fp32 master", offsets.master,
                        is_split ? DType::u16 : DType::f32, shard.first(), shard.count()});
    }
    for (int i = 0; i < format.moments; ++i) {
      arrays.push_back({fmt::format("moment {}", i + 1), offsets.moment[static_cast<size_t>(i)],
                        format.moment_dtype, shard.first(), shard.count()});
      if (format.moment_dtype == DType::u8) {
        arrays.push_back({fmt::format("scales of moment {}", i + 1),
                          offsets.scale[static_cast<size_t>(i)], DType::u8, shard.first(),
                          shard.count(), kMomentBlock.count()});
      }
    }
    return arrays;
  }
  return {};
}

/// Columns of a matrix, from the first row on, as many rows as it has.
bool are_columns(const proto::StoredParameter& parameter) {
  if (parameter.columns() < 0 || parameter.shape_size() != 2) {
    return false;
  }
  const int64_t rows = parameter.shape(0);
  const int64_t all = parameter.shape(1);
  return rows > 0 && parameter.columns() <= all && parameter.first() <= all - parameter.columns() &&
         rows <= kLargestModule / all && parameter.count() == rows * parameter.columns();
}

void check_module(const proto::StoredModule& module) {
  if (module.count() < 0 || module.count() > kLargestModule) {
    refuse_layout(fmt::format("module {} of {} elements", module.name(), module.count()));
  }
  for (const proto::StoredParameter& parameter : module.parameters()) {
    if (parameter.offset() < 0 || parameter.count() < 0 ||
        parameter.count() > module.count() - parameter.offset() || parameter.first() < 0 ||
        parameter.first() > kLargestModule ||
        (parameter.columns() != 0 && !are_columns(parameter))) {
      refuse_layout(
          fmt::format("parameter {} outside of module {}", parameter.name(), module.name()));
    }
  }
  int64_t next = 0;
  for (const proto::StoredShard& shard : module.shards()) {
    if (shard.first() != next || shard.count() <= 0 || shard.count() > module.count() - next) {
      refuse_layout(fmt::format("shards of module {}", module.name()));
    }
    next += shard.count();
  }
  if (next != module.count()) {
    refuse_layout(fmt::format("shards of module {} cover {} of {} elements", module.name(), next,
                              module.count()));
  }
}

}  // namespace

model::TensorPart part_of(const proto::StoredParameter& parameter) {
  const int64_t columns = parameter.columns();
  return model::TensorPart::of(parameter.first(), parameter.count(), columns,
                               columns == 0 ? 0 : parameter.shape(1));
}

void refuse_layout(const std::string& what) {
  throw InputError("the run's description of its state is damaged: " + what);
}

DType dtype_from(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (headrace::to_string(dtype) == text) {
      return dtype;
    }
  }
  refuse_layout(fmt::format("dtype '{}'", text));
}

std::string to_string(MasterPlace place) {
  switch (place) {
    case MasterPlace::weight:
      return "weight";
    case MasterPlace::state:
      return "state";
    case MasterPlace::split:
      return "split";
  }
  return "";
}

StateFormat state_format_of(const proto::StateLayout& layout) {
  StateFormat format;
  format.moments = layout.moments();
  format.moment_dtype = layout.moment_dtype() == headrace::to_string(DType::u8)
                            ? DType::u8
                            : dtype_from(layout.moment_dtype());
  bool known = false;
  for (const MasterPlace place : {MasterPlace::weight, MasterPlace::state, MasterPlace::split}) {
    if (to_string(place) == layout.master()) {
      format.master = place;
      known = true;
    }
  }
  const bool fits_dtype = (format.master == MasterPlace::weight) == (layout.dtype() == "f32") &&
                          (format.master != MasterPlace::split || layout.dtype() == "bf16");
  if (!known || !fits_dtype || format.moments < 0 || format.moments > 2) {
    refuse_layout(fmt::format("dtype '{}', master in '{}', {} moments", layout.dtype(),
                              layout.master(), format.moments));
  }
  return format;
}

void check_layout(const proto::StateLayout& layout) {
  state_format_of(layout);
  for (const proto::StoredModule& module : layout.modules()) {
    check_module(module);
  }
}

std::string describe_damage(const tiers::Damage& damage, const proto::StateLayout& layout) {
  std::string text;
  for (const proto::StoredModule& module : layout.modules()) {
    for (const ArrayRange& array : arrays_of(damage.object, module, layout)) {
      const int64_t width = size_of(array.dtype).count();
      const int64_t per_value = array.elements_per_value;
      const int64_t from =
          std::max<int64_t>(damage.value_offset - array.begin.count(), 0) / width * per_value;
      const int64_t end_byte =
          damage.value_offset + damage.extent.length.count() - array.begin.count();
      const int64_t to = std::min(array.count, (end_byte + width - 1) / width * per_value);
      if (from >= to) {
        continue;
      }
      const std::string parameters = parameters_in(module, array.first + from, array.first + to);
      if (!parameters.empty()) {
        text += fmt::format("{}{} of {}", text.empty() ? "" : "; ", array.name, parameters);
      }
    }
  }
  return text.empty() ? "no part of a parameter" : text;
}

}  // namespace headrace::engine
