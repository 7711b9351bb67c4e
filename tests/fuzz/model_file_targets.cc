// Files of weights and tokens.
#include <algorithm>
#include <array>
#include <vector>

#include "fuzz/targets.h"
#include "model/checkpoint_file.h"
#include "model/safetensors.h"
#include "model/token_data.h"
#include "model/torch_file.h"

namespace headrace::fuzz {

void read_safetensors(std::string_view input) {
  const model::InputFile file(scratch_file("input.safetensors", input));
  for (const auto& [name, entry] : model::read_safetensors_header(file)) {
    // What the header says of a tensor is in the file.
    std::array<std::byte, 1> last{};
    const Bytes size = bytes_for(entry.count, entry.dtype);
    if (size > Bytes(0)) {
      file.read_at(entry.begin + size.count() - 1, last);
    }
  }
}

/// The first byte chooses the kind of file and the options, the rest is the file.
void read_tokens(std::string_view input) {
  const auto choice = static_cast<unsigned char>(input.empty() ? '\0' : input[0]);
  input.remove_prefix(std::min<size_t>(input.size(), 1));
  constexpr std::array kNames{"input.bin", "input.safetensors", "input.txt", "input.bin"};
  constexpr std::array kDtypes{"auto", "uint16", "uint32", "auto"};
  model::TokenDataOptions options;
  options.seq = 1 + choice / 16;
  options.vocab_size = choice % 2 == 0 ? 256 : 100'000;
  options.byte_level = true;
  options.validation_fraction = 0.2;
  options.bin_dtype = kDtypes[choice / 4 % 4];
  const auto data = model::TokenData::open(scratch_file(kNames[choice % 4], input), options);
  for (const int64_t first : {int64_t{0}, data->training_sequences() - 1, int64_t{1} << 40}) {
    data->training_batch(std::max<int64_t>(first, 0), 2);
  }
  data->validation_batch(0, std::min<int64_t>(2, data->validation_sequences()));
}

void read_torch_file(std::string_view input) {
  const model::TorchFile file(scratch_file("input.pt", input));
  if (file.number()) {
    return;
  }
  constexpr int64_t kPart = 4096;
  std::vector<float> values(kPart);
  for (int64_t at = 0; at < file.count().count(); at += kPart) {
    const int64_t count = std::min(kPart, file.count().count() - at);
    file.read_f32(Elements(at), std::span(values).first(static_cast<size_t>(count)));
  }
}

}  // namespace headrace::fuzz
