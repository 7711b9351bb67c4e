// torch.save's format: a zip archive without compression that holds a pickle and raw storages.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "model/pickle_text.h"
#include "model/torch_file.h"

namespace headrace::model {

namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  ///< elements written at a time
constexpr int64_t kStorageAlignment = 64;     ///< of a storage in the file, as torch does it
constexpr uint32_t kLarge = 0xFFFFFFFFU;      ///< in a 32-bit field: see the zip64 one
constexpr uint16_t kVersionNeeded = 45;       ///< of the zip format, for zip64
constexpr uint16_t kSizesFollow = 0x0008;     ///< flag: checksum and sizes come after the data
constexpr uint16_t kPadding = 0x4246;         ///< tag of torch's padding field

/// Little-endian numbers in a string.
class Record {
 public:
  template <class Number>
  Record& add(Number number) {
    std::array<char, sizeof(Number)> bytes{};
    std::memcpy(bytes.data(), &number, sizeof(Number));
    text_.append(bytes.data(), bytes.size());
    return *this;
  }
  Record& add_text(const std::string& text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct Entry {
  std::string name;
  int64_t size = 0;
  std::string content;  ///< of all but the storage
  bool is_storage = false;
  uint32_t crc = 0;
  int64_t offset = 0;   ///< of the local header
  std::string padding;  ///< extra field of the local header

  bool is_large() const { return size >= int64_t{kLarge}; }
};

std::string zip64_field(std::initializer_list<int64_t> values) {
  Record field;
  field.add(uint16_t{1}).add(static_cast<uint16_t>(values.size() * sizeof(int64_t)));
  for (const int64_t value : values) {
    field.add(value);
  }
  return field.text();
}

std::string local_header(const Entry& entry) {
  const std::string extra = (entry.is_large() ? zip64_field({0, 0}) : "") + entry.padding;
  const uint32_t size = entry.is_large()   ? kLarge
                        : entry.is_storage ? 0
                                           : static_cast<uint32_t>(entry.size);
  Record header;
  header.add(uint32_t{0x04034b50})
      .add(kVersionNeeded)
      .add(entry.is_storage ? kSizesFollow : uint16_t{0})
      .add(uint16_t{0})  // stored
      .add(uint32_t{0})  // time and date
      .add(entry.crc)
      .add(size)
      .add(size)
      .add(static_cast<uint16_t>(entry.name.size()))
      .add(static_cast<uint16_t>(extra.size()))
      .add_text(entry.name)
      .add_text(extra);
  return header.text();
}

/// Behind a storage: what its local header could not know.
std::string data_descriptor(const Entry& entry) {
  Record descriptor;
  descriptor.add(uint32_t{0x08074b50}).add(entry.crc);
  if (entry.is_large()) {
    descriptor.add(entry.size).add(entry.size);
  } else {
    descriptor.add(static_cast<uint32_t>(entry.size)).add(static_cast<uint32_t>(entry.size));
  }
  return descriptor.text();
}

std::string central_header(const Entry& entry) {
  const bool is_far = entry.offset >= int64_t{kLarge};
  std::string extra;
  if (entry.is_large() && is_far) {
    extra = zip64_field({entry.size, entry.size, entry.offset});
  } else if (entry.is_large()) {
    extra = zip64_field({entry.size, entry.size});
  } else if (is_far) {
    extra = zip64_field({entry.offset});
  }
  const uint32_t size = entry.is_large() ? kLarge : static_cast<uint32_t>(entry.size);
  Record header;
  header.add(uint32_t{0x02014b50})
      .add(kVersionNeeded)
      .add(kVersionNeeded)
      .add(entry.is_storage ? kSizesFollow : uint16_t{0})
      .add(uint16_t{0})
      .add(uint32_t{0})
      .add(entry.crc)
      .add(size)
      .add(size)
      .add(static_cast<uint16_t>(entry.name.size()))
      .add(static_cast<uint16_t>(extra.size()))
      .add(uint16_t{0})  // comment
      .add(uint16_t{0})  // disk
      .add(uint16_t{0})  // attributes
      .add(uint32_t{0})
      .add(is_far ? kLarge : static_cast<uint32_t>(entry.offset))
      .add_text(entry.name)
      .add_text(extra);
  return header.text();
}

/// The end of the archive; always with the 64-bit records, which every reader of torch knows.
std::string archive_end(const std::vector<Entry>& entries, int64_t begin, int64_t size) {
  const auto count = static_cast<uint64_t>(entries.size());
  Record end;
  end.add(uint32_t{0x06064b50})
      .add(uint64_t{44})
      .add(kVersionNeeded)
      .add(kVersionNeeded)
      .add(uint32_t{0})
      .add(uint32_t{0})
      .add(count)
      .add(count)
      .add(size)
      .add(begin);
  end.add(uint32_t{0x07064b50}).add(uint32_t{0}).add(begin + size).add(uint32_t{1});
  end.add(uint32_t{0x06054b50})
      .add(uint16_t{0})
      .add(uint16_t{0})
      .add(static_cast<uint16_t>(count))
      .add(static_cast<uint16_t>(count))
      .add(static_cast<uint32_t>(std::min<int64_t>(size, kLarge)))
      .add(static_cast<uint32_t>(std::min<int64_t>(begin, kLarge)))
      .add(uint16_t{0});
  return end.text();
}

uint32_t crc_of(uint32_t crc, std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      ::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// {"cat_dim": 0, "param": the fp32 tensor in storage "0"}.
std::string pickled_parameter(const std::vector<int64_t>& shape, int64_t count) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * shape[i];
  }
  std::vector<std::string> sizes;
  std::vector<std::string> steps;
  for (size_t i = 0; i < shape.size(); ++i) {
    sizes.push_back(pickle::integer(shape[i]));
    steps.push_back(pickle::integer(strides[i]));
  }
  const std::string storage =
      pickle::tuple({pickle::text("storage"), pickle::global("torch", "FloatStorage"),
                     pickle::text("0"), pickle::text("cpu"), pickle::integer(count)}) +
      "Q";  // the storage of this name is asked of the reader
  const std::string hooks = pickle::global("collections", "OrderedDict") + ")R";
  const std::string tensor = pickle::global("torch._utils", "_rebuild_tensor_v2") +
                             pickle::tuple({storage, pickle::integer(0), pickle::tuple(sizes),
                                            pickle::tuple(steps), pickle::boolean(false), hooks}) +
                             "R";
  return pickle::document(pickle::dictionary(
      {{pickle::text("cat_dim"), pickle::integer(0)}, {pickle::text("param"), tensor}}));
}

/// Plans the archive, so that its size is known, and writes it.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(std::string pickle) { add("data.pkl", std::move(pickle)); }

  void add(const std::string& name, std::string content) {
    Entry entry;
    entry.name = "archive/" + name;
    entry.size = static_cast<int64_t>(content.size());
    entry.crc = crc_of(0, std::as_bytes(std::span(content)));
    entry.content = std::move(content);
    place(std::move(entry));
  }

  void add_storage(int64_t size) {
    Entry entry;
    entry.name = "archive/data/0";
    entry.size = size;
    entry.is_storage = true;
    constexpr int64_t kFieldHeader = 4;
    const int64_t plain = end_ + static_cast<int64_t>(local_header(entry).size()) + kFieldHeader;
    const int64_t fill = align_up(plain, kStorageAlignment) - plain;
    Record padding;
    padding.add(kPadding)
        .add(static_cast<uint16_t>(fill))
        .add_text(std::string(static_cast<size_t>(fill), 'Z'));
    entry.padding = padding.text();
    place(std::move(entry));
  }

  void write(const std::string& path, const ReadFloats& read) {
    std::string directory;
    for (const Entry& entry : entries_) {
      directory += central_header(entry);
    }
    const auto directory_size = static_cast<int64_t>(directory.size());
    const std::string end = archive_end(entries_, end_, directory_size);
    OutputFile file(path, Bytes(end_ + directory_size + static_cast<int64_t>(end.size())));
    for (Entry& entry : entries_) {
      file.write(local_header(entry));
      if (entry.is_storage) {
        write_storage(entry, file, read);
        file.write(data_descriptor(entry));
      } else {
        file.write(entry.content);
      }
    }
    for (const Entry& entry : entries_) {
      file.write(central_header(entry));
    }
    file.write(end);
    file.close();
    file.rename_to_target();
  }

 private:
  void place(Entry entry) {
    entry.offset = end_;
    end_ += static_cast<int64_t>(local_header(entry).size()) + entry.size +
            (entry.is_storage ? static_cast<int64_t>(data_descriptor(entry).size()) : 0);
    entries_.push_back(std::move(entry));
  }

  static void write_storage(Entry& entry, OutputFile& file, const ReadFloats& read) {
    const int64_t count = entry.size / static_cast<int64_t>(sizeof(float));
    std::vector<float> values(static_cast<size_t>(std::min(count, kChunk)));
    for (int64_t done = 0; done < count; done += kChunk) {
      const auto part =
          std::span(values).first(static_cast<size_t>(std::min(count - done, kChunk)));
      read(Elements(done), part);
      entry.crc = crc_of(entry.crc, std::as_bytes(part));
      file.write(std::as_bytes(part));
    }
  }

  std::vector<Entry> entries_;
  int64_t end_ = 0;
};

}  // namespace

void write_torch_parameter(const std::string& path, const std::vector<int64_t>& shape,
                           const ReadFloats& read) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    HR_CHECK(size >= 0, "a tensor of size {}", size);
    count *= size;
  }
  ArchiveWriter archive(pickled_parameter(shape, count));
  archive.add("byteorder", "little");
  archive.add_storage(count * static_cast<int64_t>(sizeof(float)));
  archive.add("version", "3\n");
  archive.write(path, read);
}

void write_torch_value(const std::string& path, const std::string& pickled) {
  ArchiveWriter archive(pickle::document(pickled));
  archive.add("byteorder", "little");
  archive.add("version", "3\n");
  archive.write(path, [](Elements, std::span<float>) {});
}

void write_torch_number(const std::string& path, int64_t number) {
  write_torch_value(path, pickle::integer(number));
}

}  // namespace headrace::model
