#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "model/checkpoint.h"
#include "model/checkpoint_file.h"

namespace headrace::model {

/// The tensors of a safetensors file (format: 8 bytes little-endian header length, JSON header,
/// data), by name. The header is treated as hostile: its length, every dtype, shape and offset are
/// checked against the file, and no two tensors may overlap. Throws InputError naming file and
/// tensor with expected and actual values.
std::map<std::string, TensorEntry> read_safetensors_header(const InputFile& file);

/// A tensor to be written.
struct PlannedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  Bytes size;
};

/// The bytes before the data of a file that holds these tensors in this order, without gaps; a
/// multiple of 8 bytes long.
std::string make_safetensors_header(std::span<const PlannedTensor> tensors);

/// "F32", "BF16", ...: the format's name of a dtype.
std::string_view safetensors_name(DType dtype);
/// Elements of a shape; InputError naming `what` for negative sizes and overflow.
Elements element_count(std::span<const int64_t> shape, std::string_view what);
/// "[2, 3]"
std::string format_shape(std::span<const int64_t> shape);

}  // namespace headrace::model
