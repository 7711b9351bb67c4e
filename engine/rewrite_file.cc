#include "engine/rewrite_file.h"

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/error.h"

namespace headrace::engine {

void rewrite_file(const std::string& path, const char* what,
                  const std::function<void(std::ostream&)>& write) {
  const std::string rewritten = path + ".new";
  std::ofstream kept(rewritten, std::ios::binary | std::ios::trunc);
  write(kept);
  kept.flush();
  if (!kept || std::rename(rewritten.c_str(), path.c_str()) != 0) {
    throw IoError(what, {.path = path, .error_number = errno});
  }
}

}  // namespace headrace::engine
