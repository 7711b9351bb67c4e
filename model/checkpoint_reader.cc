#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "model/checkpoint.h"
#include "model/checkpoint_file.h"
#include "model/checkpoint_json.h"
#include "model/safetensors.h"

namespace headrace::model {

namespace fs = std::filesystem;

namespace {

constexpr Bytes kMaxConfig = kMiB;
constexpr Bytes kMaxIndex{int64_t{64} << 20};
constexpr size_t kReadElements = size_t{1} << 19;  // 1 MiB of 16-bit values

std::string join_path(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

void check_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw InputError(fmt::format(
        "{} is not a folder. Give a local model folder with config.json and model.safetensors; "
        "download a model of the Hugging Face hub first (hf download NAME --local-dir FOLDER)",
        folder));
  }
  if (!fs::exists(join_path(folder, "config.json"), error)) {
    throw InputError(fmt::format("{} has no config.json: not a Hugging Face model folder", folder));
  }
}

[[noreturn]] void fail_without_weights(const std::string& folder) {
  std::error_code error;
  for (const auto* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (fs::exists(join_path(folder, name), error)) {
      throw InputError(
          fmt::format("{} has only {}, which runs code when loaded. Convert it to safetensors: "
                      "python3 -c \"from transformers import AutoModelForCausalLM as M; "
                      "M.from_pretrained('{}').save_pretrained('NEW_FOLDER')\"",
                      folder, name, folder));
    }
  }
  throw InputError(
      fmt::format("{} has neither model.safetensors nor model.safetensors.index.json", folder));
}

// Tensor name -> shard file name, from the index; names that leave the folder are refused.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const auto index = parse_json_object<nlohmann::json>(read_text_file(path, kMaxIndex), path);
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object() || found->empty()) {
    throw InputError(fmt::format("{}: \"weight_map\" is missing, empty or not an object", path));
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string()) {
      throw InputError(
          fmt::format("{}: the file of tensor {} is not a string", path, quote_name(tensor)));
    }
    const auto& name = file.get_ref<const std::string&>();
    if (name.find('/') != std::string::npos || name.find('\0') != std::string::npos ||
        !name.ends_with(".safetensors")) {
      throw InputError(fmt::format("{}: tensor {}: expected a .safetensors file name, got {}", path,
                                   quote_name(tensor), quote_name(name)));
    }
    result.emplace(tensor, name);
  }
  return result;
}

template <class T>
void convert(std::span<const T> in, float* out) {
  for (size_t i = 0; i < in.size(); ++i) {
    out[i] = to_float(in[i]);
  }
}

template <class T>
void read_converted(const InputFile& file, int64_t offset, std::span<float> out) {
  std::vector<T> buffer(std::min(out.size(), kReadElements));
  for (size_t done = 0; done < out.size();) {
    const std::span<T> part(buffer.data(), std::min(buffer.size(), out.size() - done));
    file.read_at(offset + static_cast<int64_t>(done * sizeof(T)), std::as_writable_bytes(part));
    convert<T>(part, out.data() + done);
    done += part.size();
  }
}

}  // namespace

struct CheckpointReader::State {
  std::string folder;
  ModelConfig config;
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::unique_ptr<InputFile>> files;  // by path

  void open_single(const std::string& path) {
    auto file = std::make_unique<InputFile>(path);
    tensors = read_safetensors_header(*file);
    files.emplace(path, std::move(file));
  }

  void open_sharded(const std::string& index_path) {
    const auto weight_map = read_weight_map(index_path);
    std::map<std::string, std::map<std::string, TensorEntry>> shards;
    std::set<std::string> missing;
    for (const auto& [tensor, name] : weight_map) {
      shards[name];
    }
    for (auto& [name, entries] : shards) {
      const std::string path = join_path(folder, name);
      if (std::error_code error; !fs::exists(path, error)) {
        missing.insert(name);
        continue;
      }
      auto file = std::make_unique<InputFile>(path);
      entries = read_safetensors_header(*file);
      files.emplace(path, std::move(file));
    }
    if (!missing.empty()) {
      throw InputError(
          fmt::format("{}: {} of {} shard files are missing: {}; download the model again",
                      index_path, missing.size(), shards.size(), fmt::join(missing, ", ")));
    }
    for (const auto& [tensor, name] : weight_map) {
      const auto& entries = shards[name];
      const auto found = entries.find(tensor);
      if (found == entries.end()) {
        throw InputError(fmt::format("{}: tensor {} should be in {}, and is not", index_path,
                                     quote_name(tensor), join_path(folder, name)));
      }
      tensors.emplace(tensor, found->second);
    }
  }

  bool is_silently_unused(const std::string& name) const {
    return name.ends_with("rotary_emb.inv_freq") ||
           (config.tie_word_embeddings && name == "lm_head.weight");
  }
};

ModelConfig load_model_config(const std::string& folder) {
  check_folder(folder);
  const std::string path = join_path(folder, "config.json");
  return parse_model_config(read_text_file(path, kMaxConfig), path);
}

CheckpointReader::CheckpointReader(const std::string& folder) : state_(std::make_unique<State>()) {
  state_->folder = folder;
  state_->config = load_model_config(folder);

  const std::string single = join_path(folder, "model.safetensors");
  const std::string index = join_path(folder, "model.safetensors.index.json");
  std::error_code error;
  if (fs::exists(single, error)) {
    state_->open_single(single);
  } else if (fs::exists(index, error)) {
    state_->open_sharded(index);
  } else {
    fail_without_weights(folder);
  }
}

CheckpointReader::~CheckpointReader() = default;

const ModelConfig& CheckpointReader::config() const {
  return state_->config;
}
const std::string& CheckpointReader::folder() const {
  return state_->folder;
}
const std::map<std::string, TensorEntry>& CheckpointReader::tensors() const {
  return state_->tensors;
}

void CheckpointReader::check(const std::vector<ModuleSpec>& modules) const {
  std::set<std::string> used;
  std::vector<std::string> missing;
  for (const ModuleSpec& module : modules) {
    for (const ParameterSpec& parameter : module.parameters) {
      used.insert(parameter.name);
      const auto found = state_->tensors.find(parameter.name);
      if (found == state_->tensors.end()) {
        missing.push_back(parameter.name);
        continue;
      }
      const TensorEntry& entry = found->second;
      if (entry.shape != parameter.shape) {
        throw InputError(fmt::format("{}: tensor {} has shape {}; config.json asks for {}",
                                     entry.path, parameter.name, format_shape(entry.shape),
                                     format_shape(parameter.shape)));
      }
      if (entry.dtype != DType::f32 && entry.dtype != DType::bf16 && entry.dtype != DType::f16) {
        throw InputError(fmt::format("{}: tensor {} has dtype {}; expected F32, BF16 or F16",
                                     entry.path, parameter.name, safetensors_name(entry.dtype)));
      }
    }
  }
  if (!missing.empty()) {
    const size_t shown = std::min<size_t>(missing.size(), 5);
    throw InputError(fmt::format(
        "{}: {} of the {} tensors that config.json asks for are missing: {}{}. Is it the model "
        "of this config.json, saved as a causal language model?",
        state_->folder, missing.size(), used.size(),
        fmt::join(missing.begin(), missing.begin() + static_cast<ptrdiff_t>(shown), ", "),
        shown < missing.size() ? ", ..." : ""));
  }
  std::vector<std::string> unused;
  for (const auto& [name, entry] : state_->tensors) {
    if (!used.contains(name) && !state_->is_silently_unused(name)) {
      unused.push_back(name);
    }
  }
  if (!unused.empty()) {
    log_message_once(LogLevel::warning, "unused tensors of " + state_->folder,
                     fmt::format("{}: {} tensors are not used by this network, the first is {}",
                                 state_->folder, unused.size(), quote_name(unused.front())));
  }
}

void CheckpointReader::read_f32(const std::string& tensor, Elements first,
                                std::span<float> out) const {
  const auto found = state_->tensors.find(tensor);
  if (found == state_->tensors.end()) {
    throw InputError(fmt::format("{}: there is no tensor {}", state_->folder, quote_name(tensor)));
  }
  const TensorEntry& entry = found->second;
  const auto count = static_cast<int64_t>(out.size());
  HR_CHECK(first.count() >= 0 && first.count() <= entry.count.count() - count,
           "{}: elements [{}, +{}) of {}", tensor, first.count(), count, entry.count.count());
  const InputFile& file = *state_->files.at(entry.path);
  const int64_t offset = entry.begin + bytes_for(first, entry.dtype).count();
  switch (entry.dtype) {
    case DType::f32:
      file.read_at(offset, std::as_writable_bytes(out));
      return;
    case DType::bf16:
      read_converted<Bf16>(file, offset, out);
      return;
    case DType::f16:
      read_converted<F16>(file, offset, out);
      return;
    default:
      throw InputError(fmt::format("{}: tensor {} has dtype {}; expected F32, BF16 or F16",
                                   entry.path, quote_name(tensor), safetensors_name(entry.dtype)));
  }
}

}  // namespace headrace::model
