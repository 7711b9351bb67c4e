#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.h"
#include "model/torch_file.h"
#include "model/torch_pickle.h"

namespace headrace::model {

namespace {

constexpr Bytes kPickleLimit{1 << 20};
constexpr int64_t kDirectoryLimit = 1 << 20;
constexpr int64_t kEndSize = 22;  ///< of the zip archive's last record, without comment

[[noreturn]] void refuse(const InputFile& file, const std::string& what) {
  throw InputError(fmt::format("{}: {}", file.path(), what));
}

/// Reads little-endian numbers with bounds.
class Bytewise {
 public:
  Bytewise(const InputFile& file, std::vector<std::byte> bytes)
      : file_(file), bytes_(std::move(bytes)) {}

  template <class Number>
  Number number(size_t at) const {
    Number value{};
    check(at, sizeof(value));
    std::memcpy(&value, bytes_.data() + at, sizeof(value));
    return value;
  }
  std::string text(size_t at, size_t length) const {
    check(at, length);
    return {reinterpret_cast<const char*>(bytes_.data()) + at, length};
  }
  size_t size() const { return bytes_.size(); }

 private:
  void check(size_t at, size_t length) const {
    if (at > bytes_.size() || length > bytes_.size() - at) {
      refuse(file_, "the zip archive ends in the middle of a record");
    }
  }

  const InputFile& file_;
  std::vector<std::byte> bytes_;
};

struct Entry {
  int64_t begin = 0;  ///< of the data
  int64_t size = 0;
};

std::vector<std::byte> read(const InputFile& file, int64_t offset, int64_t length) {
  if (offset < 0 || length < 0 || offset > file.size().count() - length) {
    refuse(file, fmt::format("{} bytes at {} lie outside of the file ({} bytes)", length, offset,
                             file.size()));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(length));
  file.read_at(offset, bytes);
  return bytes;
}

/// Where the central directory lies: offset, size.
std::pair<int64_t, int64_t> find_directory(const InputFile& file) {
  if (file.size().count() < kEndSize) {
    refuse(file, "not a file of torch.save: too short for a zip archive");
  }
  const int64_t end_at = file.size().count() - kEndSize;
  const Bytewise end(file, read(file, end_at, kEndSize));
  if (end.number<uint32_t>(0) != 0x06054b50) {
    refuse(file, "not a file of torch.save, or an old one that is no zip archive");
  }
  int64_t size = end.number<uint32_t>(12);
  int64_t offset = end.number<uint32_t>(16);
  constexpr int64_t kLocatorSize = 20;
  if (offset == 0xFFFFFFFF || size == 0xFFFFFFFF) {
    const Bytewise locator(file, read(file, end_at - kLocatorSize, kLocatorSize));
    const Bytewise end64(file, read(file, locator.number<int64_t>(8), 56));
    if (locator.number<uint32_t>(0) != 0x07064b50 || end64.number<uint32_t>(0) != 0x06064b50) {
      refuse(file, "the zip archive's directory cannot be found");
    }
    size = end64.number<int64_t>(40);
    offset = end64.number<int64_t>(48);
  }
  return {offset, size};
}

/// A size or offset that is given in the zip64 field where the 32-bit one is full.
int64_t widened(uint32_t narrow, const Bytewise& directory, size_t& extra, size_t extra_end) {
  if (narrow != 0xFFFFFFFF) {
    return narrow;
  }
  if (extra + 8 > extra_end) {
    return narrow;
  }
  const auto value = directory.number<int64_t>(extra);
  extra += 8;
  return value;
}

/// The first byte of the zip64 field's content, and its end; equal where there is none.
std::pair<size_t, size_t> zip64_field(const Bytewise& directory, size_t at, size_t end) {
  while (at + 4 <= end) {
    const size_t length = directory.number<uint16_t>(at + 2);
    if (directory.number<uint16_t>(at) == 1) {
      return {at + 4, std::min(end, at + 4 + length)};
    }
    at += 4 + length;
  }
  return {end, end};
}

/// The archive's files by name, without the folder that torch puts around them.
std::map<std::string, Entry> read_directory(const InputFile& file) {
  const auto [offset, size] = find_directory(file);
  if (size < 0 || size > kDirectoryLimit) {
    refuse(file, fmt::format("a zip directory of {} bytes", size));
  }
  const Bytewise directory(file, read(file, offset, size));
  std::map<std::string, Entry> entries;
  for (size_t at = 0; at < directory.size();) {
    if (directory.number<uint32_t>(at) != 0x02014b50) {
      refuse(file, "the zip archive's directory is damaged");
    }
    if (directory.number<uint16_t>(at + 10) != 0) {
      refuse(file, "the zip archive is compressed");
    }
    const size_t name_length = directory.number<uint16_t>(at + 28);
    const size_t extra_length = directory.number<uint16_t>(at + 30);
    const std::string name = directory.text(at + 46, name_length);
    const size_t extra_begin = at + 46 + name_length;
    auto [extra, extra_end] = zip64_field(directory, extra_begin, extra_begin + extra_length);
    const int64_t full = widened(directory.number<uint32_t>(at + 24), directory, extra, extra_end);
    const int64_t stored =
        widened(directory.number<uint32_t>(at + 20), directory, extra, extra_end);
    const int64_t header =
        widened(directory.number<uint32_t>(at + 42), directory, extra, extra_end);
    const Bytewise local(file, read(file, header, 30));
    if (stored != full || local.number<uint32_t>(0) != 0x04034b50) {
      refuse(file, "the zip archive's directory is damaged");
    }
    Entry entry;
    entry.begin = header + 30 + local.number<uint16_t>(26) + local.number<uint16_t>(28);
    entry.size = full;
    if (entry.size < 0 || entry.begin > file.size().count() - entry.size) {
      refuse(file, fmt::format("'{}' lies outside of the file", name));
    }
    const size_t slash = name.find('/');
    entries[slash == std::string::npos ? name : name.substr(slash + 1)] = entry;
    at = extra_begin + extra_length + directory.number<uint16_t>(at + 32);
  }
  return entries;
}

std::string read_text(const InputFile& file, const std::map<std::string, Entry>& entries,
                      const std::string& name) {
  const auto found = entries.find(name);
  if (found == entries.end() || Bytes(found->second.size) > kPickleLimit) {
    refuse(file, fmt::format("not a file of torch.save: it has no '{}' of a sensible size", name));
  }
  const auto bytes = read(file, found->second.begin, found->second.size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TorchFile::TorchFile(const std::string& path) : file_(path) {
  const std::map<std::string, Entry> entries = read_directory(file_);
  if (entries.contains("byteorder") && read_text(file_, entries, "byteorder") != "little") {
    refuse(file_, "it was written on a big-endian machine");
  }
  const PickledTensor tensor = unpickle(read_text(file_, entries, "data.pkl"), path);
  if (tensor.number) {
    number_ = tensor.number;
    return;
  }
  const auto storage = entries.find("data/" + tensor.storage);
  const Bytes needed = bytes_for(Elements(tensor.offset) + tensor.count, tensor.dtype);
  if (storage == entries.end() || Bytes(storage->second.size) < needed) {
    refuse(file_, fmt::format("the tensor's {} bytes are not there", needed));
  }
  shape_ = tensor.shape;
  count_ = tensor.count;
  dtype_ = tensor.dtype;
  begin_ = storage->second.begin + bytes_for(Elements(tensor.offset), dtype_).count();
}

void TorchFile::read_f32(Elements first, std::span<float> out) const {
  const Elements end = first + Elements(static_cast<int64_t>(out.size()));
  if (first < Elements(0) || end > count_) {
    refuse(file_,
           fmt::format("elements {} to {} of {}", first.count(), end.count(), count_.count()));
  }
  const int64_t offset = begin_ + bytes_for(first, dtype_).count();
  if (dtype_ == DType::f32) {
    file_.read_at(offset, std::as_writable_bytes(out));
    return;
  }
  std::vector<uint16_t> halves(out.size());
  file_.read_at(offset, std::as_writable_bytes(std::span(halves)));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = dtype_ == DType::bf16 ? to_float(Bf16{halves[i]}) : to_float(F16{halves[i]});
  }
}

}  // namespace headrace::model
