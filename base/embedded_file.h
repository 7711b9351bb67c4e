#pragma once

#include <string_view>

namespace headrace {

/// A file of the repository that is built into the program. See headrace_embed() in
/// cmake/HeadraceTargets.cmake.
struct EmbeddedFile {
  std::string_view name;  ///< without the folder
  std::string_view text;

  std::string_view stem() const { return name.substr(0, name.rfind('.')); }
};

}  // namespace headrace
