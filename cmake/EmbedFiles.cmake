# Run as a script: writes OUTPUT, a source that defines FUNCTION() with the files of INPUTS (separated
# by commas). See headrace_embed().
string(REPLACE "," ";" inputs "${INPUTS}")
set(texts "")
set(entries "")
set(index 0)
foreach(input IN LISTS inputs)
  get_filename_component(name "${input}" NAME)
  file(READ "${input}" text HEX)
  string(LENGTH "${text}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," text "${text}")
  string(APPEND texts "constexpr char kText${index}[] = {${text}};\n")
  string(APPEND entries "      {\"${name}\", {kText${index}, ${size}}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "#include <span>

#include \"base/embedded_file.h\"

namespace headrace {

namespace {
${texts}}  // namespace

std::span<const EmbeddedFile> ${FUNCTION}();

std::span<const EmbeddedFile> ${FUNCTION}() {
  static constexpr EmbeddedFile kFiles[] = {
${entries}  };
  return kFiles;
}

}  // namespace headrace
")
