#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"

namespace headrace::model {

/// What the pickle of a torch.save file says.
struct PickledTensor {
  std::optional<int64_t> number;  ///< set: the file holds only this
  std::string storage;            ///< key of the storage
  DType dtype = DType::f32;       ///< f32, bf16 or f16
  int64_t offset = 0;             ///< first element in the storage
  std::vector<int64_t> shape;
  Elements count;
};

/// Reads the pickle of a contiguous tensor, alone, or under "param" in a dictionary, or of a
/// number. Understands the instructions that torch.save writes for these and executes nothing.
/// Throws InputError naming `origin`. Memory and time are bounded by the text's length.
PickledTensor unpickle(std::string_view text, const std::string& origin);

}  // namespace headrace::model
