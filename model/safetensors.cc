#include "model/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "model/checkpoint_json.h"

namespace headrace::model {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxDimensions = 16;

constexpr std::array<std::pair<DType, std::string_view>, 8> kNames = {{{DType::f32, "F32"},
                                                                       {DType::bf16, "BF16"},
                                                                       {DType::f16, "F16"},
                                                                       {DType::i32, "I32"},
                                                                       {DType::i64, "I64"},
                                                                       {DType::u8, "U8"},
                                                                       {DType::u16, "U16"},
                                                                       {DType::u32, "U32"}}};

std::optional<DType> dtype_named(std::string_view name) {
  for (const auto& [dtype, text] : kNames) {
    if (text == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

// Turns the header into entries one tensor at a time: a finished tensor is taken out of the JSON
// document at once, so that a large header does not become a larger tree.
class HeaderParser {
 public:
  HeaderParser(const InputFile& file, int64_t data_begin) : file_(file), data_begin_(data_begin) {}

  std::map<std::string, TensorEntry> parse(const std::string& text) {
    try {
      const json rest =
          json::parse(text, [this](int depth, json::parse_event_t event, json& value) {
            return keep(depth, event, value);
          });
      if (!rest.is_object()) {
        fail("the header is not a JSON object");
      }
    } catch (const json::exception& error) {
      fail(fmt::format("the header is not valid JSON: {}", error.what()));
    }
    check_overlaps();
    return std::move(entries_);
  }

 private:
  // Depth 1: names of tensors and their objects; 2: the properties; 3: elements of arrays.
  bool keep(int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    switch (event) {
      case Event::key:
        on_name(depth, value.get_ref<const std::string&>());
        return true;
      case Event::object_start:
      case Event::array_start:
        if (depth == 0 && event == Event::array_start) {
          fail("the header is not a JSON object");
        }
        if (depth > 2 || (depth == 1 && event == Event::array_start)) {
          fail("the header has a value that belongs to no tensor", name_);
        }
        if (depth == 1) {
          properties_.clear();
        }
        elements_ = 0;
        return true;
      case Event::value:
        if (depth == 1) {
          fail("expected an object with dtype, shape and data_offsets", name_);
        }
        if (depth == 3 && ++elements_ > kMaxDimensions) {
          fail(fmt::format("more than {} dimensions", kMaxDimensions), name_);
        }
        return true;
      case Event::object_end:
        if (depth != 1) {
          return true;
        }
        if (name_ != "__metadata__") {
          entries_.emplace(name_, entry(value));
        }
        return false;
      case Event::array_end:
        return true;
    }
    return true;
  }

  void on_name(int depth, const std::string& name) {
    if (depth == 1) {
      if (entries_.contains(name) || (name == "__metadata__" && has_metadata_)) {
        fail("the name appears twice", name);
      }
      has_metadata_ = has_metadata_ || name == "__metadata__";
      name_ = name;
    } else if (!properties_.insert(name).second) {
      fail(fmt::format("{} appears twice", quote_name(name)), name_);
    }
  }

  TensorEntry entry(const json& properties) const {
    TensorEntry result;
    result.path = file_.path();
    const json& dtype_text = property(properties, "dtype");
    const auto dtype = dtype_text.is_string()
                           ? dtype_named(dtype_text.get_ref<const std::string&>())
                           : std::nullopt;
    if (!dtype) {
      fail(fmt::format("dtype {} is not supported; supported are F32, BF16, F16 for weights and "
                       "I64, I32, U32, U16, U8 for tokens",
                       quote_name(dtype_text.dump())),
           name_);
    }
    result.dtype = *dtype;
    result.shape = integers(properties, "shape");
    result.count = element_count(result.shape, describe(name_));
    const std::vector<int64_t> offsets = integers(properties, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      fail(fmt::format("data_offsets {} are not [begin, end] with begin <= end",
                       format_shape(offsets)),
           name_);
    }
    const int64_t data_bytes = file_.size().count() - data_begin_;
    if (offsets[1] > data_bytes) {
      fail(fmt::format("data_offsets {} lie outside the file, which has {} bytes of data; the "
                       "file is truncated or damaged, copy it again",
                       format_shape(offsets), data_bytes),
           name_);
    }
    result.begin = data_begin_ + offsets[0];
    result.size = Bytes(offsets[1] - offsets[0]);
    if (result.count.count() > std::numeric_limits<int64_t>::max() / size_of(*dtype).count() ||
        bytes_for(result.count, *dtype) != result.size) {
      fail(
          fmt::format("shape {} of {} does not fill data_offsets {}: {} elements of {} bytes in {} "
                      "bytes",
                      format_shape(result.shape), safetensors_name(*dtype), format_shape(offsets),
                      result.count.count(), size_of(*dtype).count(), result.size.count()),
          name_);
    }
    return result;
  }

  const json& property(const json& properties, const char* key) const {
    const auto found = properties.find(key);
    if (found == properties.end()) {
      fail(fmt::format("\"{}\" is missing", key), name_);
    }
    return *found;
  }

  std::vector<int64_t> integers(const json& properties, const char* key) const {
    const json& list = property(properties, key);
    if (!list.is_array()) {
      fail(fmt::format("\"{}\" is not an array", key), name_);
    }
    std::vector<int64_t> result;
    for (const json& element : list) {
      const bool fits = element.is_number_unsigned() &&
                        element.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
      if (!fits) {
        fail(fmt::format("\"{}\" holds {}; expected whole numbers from 0 to 2^63 - 1", key,
                         quote_name(element.dump())),
             name_);
      }
      result.push_back(element.get<int64_t>());
    }
    return result;
  }

  void check_overlaps() const {
    std::vector<std::pair<const std::string*, const TensorEntry*>> order;
    for (const auto& [name, entry] : entries_) {
      if (entry.size.count() > 0) {
        order.emplace_back(&name, &entry);
      }
    }
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.second->begin < b.second->begin; });
    for (size_t i = 1; i < order.size(); ++i) {
      const TensorEntry& before = *order[i - 1].second;
      const int64_t end = before.begin + before.size.count();
      if (order[i].second->begin < end) {
        fail(fmt::format("its bytes overlap those of {}: begins at {}, expected {} or more",
                         quote_name(*order[i - 1].first), order[i].second->begin, end),
             *order[i].first);
      }
    }
  }

  std::string describe(const std::string& name) const {
    return fmt::format("{}: tensor {}", file_.path(), quote_name(name));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}", file_.path(), what));
  }
  [[noreturn]] void fail(const std::string& what, const std::string& name) const {
    throw InputError(fmt::format("{}: {}", describe(name), what));
  }

  const InputFile& file_;
  int64_t data_begin_;
  std::string name_;
  std::set<std::string> properties_;
  size_t elements_ = 0;
  bool has_metadata_ = false;
  std::map<std::string, TensorEntry> entries_;
};

}  // namespace

std::map<std::string, TensorEntry> read_safetensors_header(const InputFile& file) {
  const int64_t size = file.size().count();
  if (size < kLengthBytes) {
    throw InputError(fmt::format("{}: not a safetensors file: {} bytes, expected at least {}",
                                 file.path(), size, kLengthBytes));
  }
  uint64_t length = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  const auto limit = static_cast<uint64_t>(std::min(size - kLengthBytes, kMaxHeader));
  if (length < 2 || length > limit) {
    throw InputError(
        fmt::format("{}: not a safetensors file, or truncated: the header claims {} bytes, and the "
                    "file of {} bytes leaves room for 2 to {}",
                    file.path(), length, size, limit));
  }
  std::string text(length, '\0');
  file.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return HeaderParser(file, kLengthBytes + static_cast<int64_t>(length)).parse(text);
}

std::string make_safetensors_header(std::span<const PlannedTensor> tensors) {
  // Written by hand because the order of the names must be that of the data.
  std::string text = R"({"__metadata__":{"format":"pt"})";
  Bytes offset;
  for (const PlannedTensor& tensor : tensors) {
    const Bytes end = offset + tensor.size;
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        json(tensor.name).dump(), safetensors_name(tensor.dtype),
                        fmt::join(tensor.shape, ","), offset.count(), end.count());
    offset = end;
  }
  text += "}";
  text.resize(static_cast<size_t>(align_up(static_cast<int64_t>(text.size()), 8)), ' ');
  const auto length = static_cast<uint64_t>(text.size());
  std::string result(sizeof(length), '\0');
  std::copy_n(reinterpret_cast<const char*>(&length), sizeof(length), result.data());
  return result + text;
}

std::string_view safetensors_name(DType dtype) {
  const auto* found = std::find_if(kNames.begin(), kNames.end(),
                                   [&](const auto& entry) { return entry.first == dtype; });
  return found == kNames.end() ? "?" : found->second;
}

Elements element_count(std::span<const int64_t> shape, std::string_view what) {
  int64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    overflow = overflow || size < 0 || __builtin_mul_overflow(count, size, &count);
  }
  if (overflow && !empty) {
    throw InputError(
        fmt::format("{}: shape {} has more than 2^63 - 1 elements", what, format_shape(shape)));
  }
  return Elements(empty ? 0 : count);
}

std::string format_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace headrace::model
