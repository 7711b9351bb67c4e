#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace headrace::engine {

/// Replaces the file by what `write` writes, which may read the old one meanwhile. `what` is the
/// text of the IoError.
void rewrite_file(const std::string& path, const char* what,
                  const std::function<void(std::ostream&)>& write);

}  // namespace headrace::engine
