#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/completion.h"
#include "base/units.h"

namespace headrace::device {

/// Reads ranges of files into one range of device memory, past host memory (GPUDirect Storage).
/// Thread-safe. Keeps files open; the destructor waits for what is in flight.
class DirectReader {
 public:
  virtual ~DirectReader() = default;

  /// Bytes [offset, offset + length) of the file to `target`, which lies in the reader's memory;
  /// all three are multiples of kDirectAlignment. Nobody may use the target until the end. A failed
  /// or short read fails the completion with an IoError that names path, offset, expected and
  /// actual bytes.
  virtual Completion read(const std::string& path, int64_t offset, std::byte* target,
                          Bytes length) = 0;

  /// The file is opened anew by the next read; nothing of it is in flight. Before it is removed.
  virtual void close(const std::string& path) = 0;

  /// What is used: "cuFile 1.14, nvidia-fs 2.22".
  virtual std::string description() const = 0;
};

inline constexpr Bytes kDirectAlignment{4096};

/// A reader, or why there can be none.
struct DirectSearch {
  std::unique_ptr<DirectReader> reader;
  std::string refusal;
};

}  // namespace headrace::device
