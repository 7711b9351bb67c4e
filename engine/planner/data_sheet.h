#pragma once

#include <string>
#include <vector>

#include "base/units.h"
#include "proto/profile.pb.h"

namespace headrace::engine {

/// A file of configs/hardware; its README.md says what the fields mean. Fields of other kinds are
/// 0.
struct DataSheet {
  enum class Kind : uint8_t { gpu, drive, host } kind = Kind::gpu;
  std::string name;
  std::string note;
  Bytes memory;
  double memory_rate = 0;  ///< rates per second
  double link_rate = 0;
  double flops_bf16 = 0;
  double flops_f16 = 0;
  double flops_f32 = 0;
  double flops_fp8 = 0;  ///< 0: has no products in fp8
  Bytes capacity;
  double read_rate = 0;
  double write_rate = 0;
  Bytes endurance;  ///< 0: not stated
};

/// InputError naming `source` and the field.
DataSheet parse_data_sheet(const std::string& json, const std::string& source);

/// The data sheet of that name, or of a .json file. InputError listing the names otherwise.
DataSheet find_data_sheet(const std::string& name_or_file);

/// A .pb file that `headrace probe` has stored. InputError.
proto::HardwareProfile load_profile(const std::string& path);

}  // namespace headrace::engine
