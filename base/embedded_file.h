#pragma once

namespace headrace {

/// A file of the repository that is built into the program. See headrace_embed() in
/// cmake/HeadraceTargets.cmake.
struct EmbeddedFile {
  const char* name;  ///< without the folder and the extension
  const char* text;
};

}  // namespace headrace
