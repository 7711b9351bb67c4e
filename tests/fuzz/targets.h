#pragma once

#include <span>
#include <string>
#include <string_view>

namespace headrace::fuzz {

/// A reader of bytes that come from outside. `read` takes any bytes and throws a headrace::Error
/// where they are refused; whatever else it throws, a crash, or memory that the input does not
/// account for is a bug.
struct Target {
  std::string_view name;  ///< also of its folder in tests/fuzz/corpus
  void (*read)(std::string_view input);
};

std::span<const Target> targets();
/// Null where there is none.
const Target* find_target(std::string_view name);

/// Whether the input was accepted. Errors but those of the input (InternalError among them) are
/// thrown on.
bool accepts(const Target& target, std::string_view input);

// One per format; the forms of their inputs are in tests/fuzz/README.md.
void read_ds_config(std::string_view input);
void read_safetensors(std::string_view input);
void read_tokens(std::string_view input);
void read_catalog(std::string_view input);
void read_run_state(std::string_view input);
void read_torch_file(std::string_view input);
void read_trace(std::string_view input);
void read_profile(std::string_view input);
void read_model_config(std::string_view input);

/// A file with this content in a folder of this process, for readers that take a path. `name` is
/// the file's name; a later file of the same name replaces it. In memory, where the machine has a
/// folder for that.
std::string scratch_file(const std::string& name, std::string_view content);
/// The folder itself; it goes with the process.
const std::string& scratch_folder();

}  // namespace headrace::fuzz
