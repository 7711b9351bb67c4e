#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace headrace::model {

/// The byte-level vocabulary: token ids 0 to 255 are the bytes of the text, then three specials.
inline constexpr int64_t kByteVocabulary = 259;
inline constexpr int64_t kByteBos = 256;
inline constexpr int64_t kByteEos = 257;
inline constexpr int64_t kBytePad = 258;

/// Shapes for `headrace init-model`: "tiny", "small", ... with the byte-level vocabulary, and those
/// of some published models with theirs. UsageError listing the names otherwise.
ModelConfig preset_config(const std::string& name);
std::vector<std::string> preset_names();

/// Whether the model folder's config.json says that token ids are bytes
/// ("headrace_vocabulary": "bytes"), so that plain text is training data as it is. InputError if
/// there is no readable config.json.
bool is_byte_level(const std::string& model_folder);

/// `config_json` with the mark that is_byte_level() looks for and the ids of the special tokens.
std::string mark_byte_level(const std::string& config_json);

}  // namespace headrace::model
