#include "model/token_data_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "model/checkpoint_json.h"
#include "model/safetensors.h"

namespace headrace::model {

namespace {

constexpr size_t kReadElements = size_t{1} << 17;

// llm.c's data files: 256 int32 of header, of which magic, version and token count are used.
constexpr int64_t kLlmcHeaderBytes = 1024;
struct LlmcFormat {
  int32_t magic;
  int32_t version;
  DType dtype;
};
constexpr std::array<LlmcFormat, 2> kLlmcFormats = {
    {{20240520, 1, DType::u16}, {20240801, 7, DType::u32}}};

std::string_view bin_name(DType dtype) {
  return dtype == DType::u16 ? "uint16" : "uint32";
}

struct BinLayout {
  int64_t begin = 0;
  DType dtype = DType::u16;
  int64_t count = 0;
};

BinLayout raw_bin_layout(const InputFile& file, const TokenDataOptions& options) {
  BinLayout layout;
  const int64_t largest_u16 = std::numeric_limits<uint16_t>::max();
  const bool wide = options.bin_dtype == "uint32" ||
                    (options.bin_dtype == "auto" && options.vocab_size > largest_u16 + 1);
  layout.dtype = wide ? DType::u32 : DType::u16;
  const int64_t item = size_of(layout.dtype).count();
  if (file.size().count() % item != 0) {
    throw InputError(
        fmt::format("{}: {} bytes are not a whole number of {} tokens; set the bin dtype "
                    "(uint16 or uint32) if this guess is wrong",
                    file.path(), file.size().count(), bin_name(layout.dtype)));
  }
  layout.count = file.size().count() / item;
  return layout;
}

BinLayout bin_layout(const InputFile& file, const TokenDataOptions& options) {
  if (options.bin_dtype != "auto" && options.bin_dtype != "uint16" &&
      options.bin_dtype != "uint32") {
    throw InputError(
        fmt::format("bin dtype \"{}\": expected uint16, uint32 or auto", options.bin_dtype));
  }
  std::array<int32_t, 3> header{};
  if (file.size().count() >= kLlmcHeaderBytes) {
    file.read_at(0, std::as_writable_bytes(std::span(header)));
  }
  const auto* format = std::find_if(
      kLlmcFormats.begin(), kLlmcFormats.end(),
      [&](const auto& known) { return known.magic == header[0] && known.version == header[1]; });
  if (format == kLlmcFormats.end()) {
    return raw_bin_layout(file, options);
  }
  if (options.bin_dtype != "auto" && options.bin_dtype != bin_name(format->dtype)) {
    throw InputError(fmt::format("{}: its header says {}, the bin dtype is set to {}", file.path(),
                                 bin_name(format->dtype), options.bin_dtype));
  }
  BinLayout layout{kLlmcHeaderBytes, format->dtype, header[2]};
  const int64_t data_bytes = file.size().count() - kLlmcHeaderBytes;
  if (header[2] < 0 || header[2] * size_of(layout.dtype).count() != data_bytes) {
    throw InputError(fmt::format(
        "{}: the header says {} tokens of {} bytes after {} bytes of header; the file has {} bytes",
        file.path(), header[2], size_of(layout.dtype).count(), kLlmcHeaderBytes,
        file.size().count()));
  }
  return layout;
}

TokenFile open_bin(std::shared_ptr<const InputFile> file, const TokenDataOptions& options) {
  const BinLayout layout = bin_layout(*file, options);
  TokenArray ids(std::move(file), layout.begin, layout.dtype, layout.count, TokenArray::Role::ids,
                 options.vocab_size);
  return {std::move(ids), std::nullopt, 1, layout.count, false};
}

TokenArray tensor_array(const std::shared_ptr<const InputFile>& file, const std::string& name,
                        const TensorEntry& entry, TokenArray::Role role, int64_t vocab_size) {
  const bool is_float =
      entry.dtype == DType::f32 || entry.dtype == DType::bf16 || entry.dtype == DType::f16;
  if (is_float) {
    throw InputError(fmt::format("{}: tensor {} has dtype {}; tokens are integers", file->path(),
                                 name, safetensors_name(entry.dtype)));
  }
  return {file, entry.begin, entry.dtype, entry.count.count(), role, vocab_size};
}

TokenFile open_safetensors(const std::shared_ptr<const InputFile>& file,
                           const TokenDataOptions& options) {
  const auto tensors = read_safetensors_header(*file);
  const auto ids = tensors.find("input_ids");
  if (ids == tensors.end()) {
    throw InputError(fmt::format(
        "{}: there is no tensor input_ids{}", file->path(),
        tensors.empty() ? "" : "; the first one is " + quote_name(tensors.begin()->first)));
  }
  const std::vector<int64_t>& shape = ids->second.shape;
  if (shape.empty() || shape.size() > 2) {
    throw InputError(fmt::format("{}: input_ids has shape {}; expected [tokens] or [rows, tokens]",
                                 file->path(), format_shape(shape)));
  }
  TokenFile result{
      tensor_array(file, "input_ids", ids->second, TokenArray::Role::ids, options.vocab_size),
      std::nullopt, shape.size() == 2 ? shape[0] : 1, shape.back(), shape.size() == 2};
  if (const auto labels = tensors.find("labels"); labels != tensors.end()) {
    if (labels->second.shape != shape) {
      throw InputError(fmt::format("{}: labels has shape {}; expected that of input_ids, {}",
                                   file->path(), format_shape(labels->second.shape),
                                   format_shape(shape)));
    }
    result.labels =
        tensor_array(file, "labels", labels->second, TokenArray::Role::labels, options.vocab_size);
  }
  return result;
}

void check_plain_text(const std::string& path, const TokenDataOptions& options) {
  const std::string extension = std::filesystem::path(path).extension().string();
  constexpr std::array kNotText = {".json", ".jsonl", ".gz",  ".xz", ".zst",   ".bz2",    ".zip",
                                   ".tar",  ".npy",   ".npz", ".pt", ".arrow", ".parquet"};
  if (std::find(kNotText.begin(), kNotText.end(), extension) != kNotText.end()) {
    throw InputError(
        fmt::format("{}: {} is not a format to train from; scripts/prepare_data.py makes "
                    ".safetensors or .bin of "
                    "text and JSON lines",
                    path, extension));
  }
  if (!options.byte_level) {
    throw InputError(
        fmt::format("{} is taken for plain text, and the model does not have a byte-level "
                    "vocabulary; tokenize it "
                    "with scripts/prepare_data.py --tokenizer MODEL_FOLDER",
                    path));
  }
}

}  // namespace

TokenArray::TokenArray(std::shared_ptr<const InputFile> file, int64_t begin, DType dtype,
                       int64_t count, Role role, int64_t vocab_size)
    : file_(std::move(file)),
      begin_(begin),
      dtype_(dtype),
      count_(count),
      role_(role),
      vocab_size_(vocab_size) {
  HR_CHECK(vocab_size > 0 && vocab_size <= std::numeric_limits<int32_t>::max(),
           "a vocabulary of {}", vocab_size);
}

template <class T>
void TokenArray::read_as(int64_t first, std::span<int32_t> out) const {
  std::vector<T> buffer(std::min(out.size(), kReadElements));
  for (size_t done = 0; done < out.size();) {
    const std::span<T> part(buffer.data(), std::min(buffer.size(), out.size() - done));
    const int64_t position = first + static_cast<int64_t>(done);
    file_->read_at(begin_ + position * static_cast<int64_t>(sizeof(T)),
                   std::as_writable_bytes(part));
    for (size_t i = 0; i < part.size(); ++i) {
      const auto value = static_cast<int64_t>(part[i]);
      const bool ignored = role_ == Role::labels && value == kIgnoredLabel;
      if ((value < 0 || value >= vocab_size_) && !ignored) {
        throw InputError(fmt::format(
            "{}: {} {} is {}; the model's vocabulary is 0 to {}. The data is of another tokenizer "
            "or of another integer type",
            file_->path(), role_ == Role::ids ? "token" : "label",
            position + static_cast<int64_t>(i), value, vocab_size_ - 1));
      }
      out[done + i] = static_cast<int32_t>(value);
    }
    done += part.size();
  }
}

void TokenArray::read(int64_t first, std::span<int32_t> out) const {
  const auto size = static_cast<int64_t>(out.size());
  HR_CHECK(first >= 0 && first <= count_ - size, "tokens [{}, +{}) of {}", first, size, count_);
  switch (dtype_) {
    case DType::u8:
      return read_as<uint8_t>(first, out);
    case DType::u16:
      return read_as<uint16_t>(first, out);
    case DType::u32:
      return read_as<uint32_t>(first, out);
    case DType::i32:
      return read_as<int32_t>(first, out);
    case DType::i64:
      return read_as<int64_t>(first, out);
    default:
      HR_CHECK(false, "tokens of {}", to_string(dtype_));
  }
}

void TokenArray::check_all() const {
  if ((dtype_ == DType::u8 && vocab_size_ > std::numeric_limits<uint8_t>::max()) ||
      (dtype_ == DType::u16 && vocab_size_ > std::numeric_limits<uint16_t>::max())) {
    return;
  }
  std::vector<int32_t> buffer(std::min(static_cast<size_t>(count_), kReadElements));
  for (int64_t done = 0; done < count_;) {
    const auto step = std::min(static_cast<int64_t>(buffer.size()), count_ - done);
    read(done, std::span(buffer).first(static_cast<size_t>(step)));
    done += step;
  }
}

TokenFile open_token_file(const std::string& path, const TokenDataOptions& options) {
  const auto file = std::make_shared<const InputFile>(path);
  if (path.ends_with(".bin")) {
    return open_bin(file, options);
  }
  if (path.ends_with(".safetensors")) {
    return open_safetensors(file, options);
  }
  check_plain_text(path, options);
  const int64_t size = file->size().count();
  return {TokenArray(file, 0, DType::u8, size, TokenArray::Role::ids, options.vocab_size),
          std::nullopt, 1, size, false};
}

}  // namespace headrace::model
