#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "model/checkpoint_file.h"
#include "model/token_data.h"

namespace headrace::model {

inline constexpr int32_t kIgnoredLabel = -100;

/// An array of integers in a file, read as token ids. Thread-safe.
class TokenArray {
 public:
  enum class Role : uint8_t { ids, labels };  ///< labels may be kIgnoredLabel

  TokenArray(std::shared_ptr<const InputFile> file, int64_t begin, DType dtype, int64_t count,
             Role role, int64_t vocab_size);

  int64_t count() const { return count_; }
  /// Reads elements [first, first + out.size()); InputError naming position and value for one that
  /// is outside the vocabulary.
  void read(int64_t first, std::span<int32_t> out) const;
  /// Reads everything once for the check, unless the dtype cannot hold a bad value.
  void check_all() const;

 private:
  template <class T>
  void read_as(int64_t first, std::span<int32_t> out) const;

  std::shared_ptr<const InputFile> file_;
  int64_t begin_;
  DType dtype_;
  int64_t count_;
  Role role_;
  int64_t vocab_size_;
};

/// The tokens of a data file of any of the formats of TokenData.
struct TokenFile {
  TokenArray ids;
  std::optional<TokenArray> labels;
  int64_t rows = 1;
  int64_t row_length = 0;
  bool has_rows = false;  ///< two-dimensional: rows do not continue in the next
};

TokenFile open_token_file(const std::string& path, const TokenDataOptions& options);

}  // namespace headrace::model
