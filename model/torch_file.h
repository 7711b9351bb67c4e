#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "model/checkpoint_file.h"

namespace headrace::model {

/// Fills `out` with elements [first, first + out.size()) of a tensor.
using ReadFloats = std::function<void(Elements first, std::span<float> out)>;

/// Writes a file that torch.load reads: {"cat_dim": 0, "param": tensor of fp32}, as DeepSpeed's
/// universal checkpoints have it. Streamed; under a temporary name until it is whole. Throws
/// IoError.
void write_torch_parameter(const std::string& path, const std::vector<int64_t>& shape,
                           const ReadFloats& read);
/// Writes a file that torch.load reads as the value; `pickled` is of model/pickle_text.h. Throws
/// IoError.
void write_torch_value(const std::string& path, const std::string& pickled);
/// The same for a number.
void write_torch_number(const std::string& path, int64_t number);

/// A file of torch.save that holds a tensor, alone or as "param" of a dictionary, or a number. Only
/// the few instructions that such files consist of are understood: nothing is executed. Reading is
/// thread-safe. Throws InputError naming the file for anything else.
class TorchFile {
 public:
  explicit TorchFile(const std::string& path);

  /// Set where the file holds a number.
  std::optional<int64_t> number() const { return number_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  Elements count() const { return count_; }
  /// Elements [first, first + out.size()) of the tensor as fp32.
  void read_f32(Elements first, std::span<float> out) const;

 private:
  InputFile file_;
  std::optional<int64_t> number_;
  std::vector<int64_t> shape_;
  Elements count_;
  DType dtype_ = DType::f32;
  int64_t begin_ = 0;  ///< of the first element in the file
};

}  // namespace headrace::model
