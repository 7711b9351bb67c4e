#pragma once

#include <fstream>
#include <string>

namespace headrace::engine {

/// A file of which it is known that it can be written, and that is begun later: until then what was
/// there stays as it is, and where there was nothing the destructor leaves nothing.
class LaterFile {
 public:
  /// `what` is the text of the IoError.
  LaterFile(std::string path, const char* what);
  LaterFile(const LaterFile&) = delete;
  LaterFile& operator=(const LaterFile&) = delete;
  ~LaterFile();

  /// Empties the file. To be called once.
  std::ofstream begin();

 private:
  std::ofstream open(std::ios::openmode mode) const;

  std::string path_;
  const char* what_;
  bool is_unwanted_;  ///< made here, and not begun
};

}  // namespace headrace::engine
