#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "model/checkpoint.h"
#include "model/checkpoint_file.h"
#include "model/checkpoint_json.h"
#include "model/checkpoint_plan.h"
#include "model/safetensors.h"

namespace headrace::model {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr int64_t kChunkElements = int64_t{1} << 20;  // 4 MiB of fp32

// What belongs to a model besides weights and config.json.
constexpr std::array kCompanions = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "tokenizer.model",
                                    "vocab.json",
                                    "merges.txt",
                                    "added_tokens.json",
                                    "chat_template.jinja",
                                    "generation_config.json"};

std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      throw InputError(
          fmt::format("weights cannot be stored as {}; use f32, bf16 or f16", to_string(dtype)));
  }
}

// The source's config.json with every key kept and the dtype set. It must describe the same
// tensors.
std::string copied_config(const std::string& source, DType dtype,
                          const std::vector<ModuleSpec>& modules) {
  const std::string path = (fs::path(source) / "config.json").string();
  const std::string text = read_text_file(path, kMiB);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ModuleSpec& module : module_specs(parse_model_config(text, path))) {
    for (const ParameterSpec& parameter : module.parameters) {
      shapes.emplace(parameter.name, parameter.shape);
    }
  }
  for (const ModuleSpec& module : modules) {
    for (const ParameterSpec& parameter : module.parameters) {
      const auto found = shapes.find(parameter.name);
      if (found == shapes.end() || found->second != parameter.shape) {
        throw InputError(fmt::format(
            "{} describes another model: it {} {}, and the one to be written has it as {}", path,
            found == shapes.end() ? "has no" : format_shape(found->second) + " is its",
            parameter.name, format_shape(parameter.shape)));
      }
      shapes.erase(found);
    }
  }
  if (!shapes.empty()) {
    throw InputError(fmt::format("{} describes another model: it has {}, which is not written",
                                 path, shapes.begin()->first));
  }
  auto config = parse_json_object<nlohmann::ordered_json>(text, path);
  if (config.contains("dtype")) {
    config["dtype"] = torch_name(dtype);
  }
  if (config.contains("torch_dtype") || !config.contains("dtype")) {
    config["torch_dtype"] = torch_name(dtype);
  }
  return config.dump(2) + "\n";
}

// Converts values to the stored dtype and hands the bytes on; counts what became infinite.
class Converter {
 public:
  explicit Converter(DType dtype) : dtype_(dtype) {
    if (dtype != DType::f32) {
      buffer_.resize(static_cast<size_t>(kChunkElements));
    }
  }

  std::span<const std::byte> convert(std::span<const float> values) {
    if (dtype_ == DType::f32) {
      return std::as_bytes(values);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::bf16) {
        buffer_[i] = to_bf16(values[i]).bits;
      } else {
        buffer_[i] = to_f16(values[i]).bits;
        overflows_ += (buffer_[i] & 0x7fffU) == 0x7c00U && std::isfinite(values[i]) ? 1 : 0;
      }
    }
    return std::as_bytes(std::span(buffer_.data(), values.size()));
  }

  int64_t take_overflows() { return std::exchange(overflows_, 0); }

 private:
  DType dtype_;
  std::vector<uint16_t> buffer_;
  int64_t overflows_ = 0;
};

void copy_file(const std::string& from, OutputFile& to, const InputFile& source) {
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(source.size(), kMiB).count()));
  for (int64_t done = 0; done < source.size().count();) {
    const auto step = std::min<int64_t>(source.size().count() - done, kMiB.count());
    const auto part = std::span(buffer).first(static_cast<size_t>(step));
    source.read_at(done, part);
    to.write(std::span<const std::byte>(part));
    done += step;
  }
  to.close();
  log_debug("copied {}", from);
}

}  // namespace

struct CheckpointWriter::State {
  OutputFolder folder;
  Options options;
  std::vector<ShardPlan> shards;
  Converter converter;
  std::vector<float> values;

  // Where a tensor goes, and how much of it is there.
  struct Target {
    size_t shard = 0;
    int64_t offset = 0;  // of its first byte in the file
    Elements count;
    Elements written;
    int64_t columns = 0;  // of those written, where it comes by columns
  };

  std::vector<std::unique_ptr<OutputFile>> weights;  // by shard; null: not begun
  std::vector<std::unique_ptr<OutputFile>> others;   // complete
  std::unique_ptr<OutputFile> index;                 // if sharded; complete
  std::map<std::string, Target> targets;
  size_t incomplete = 0;  // tensors

  State(std::string path, const std::vector<ModuleSpec>& modules, Options options_in)
      : folder(std::move(path)),
        options(std::move(options_in)),
        shards(plan_shards(modules, options.dtype, options.max_shard_size)),
        converter(options.dtype),
        values(static_cast<size_t>(kChunkElements)) {
    weights.resize(shards.size());
    for (size_t shard = 0; shard < shards.size(); ++shard) {
      auto offset = static_cast<int64_t>(make_safetensors_header(shards[shard].tensors).size());
      for (const PlannedTensor& tensor : shards[shard].tensors) {
        targets[tensor.name] = {shard, offset, element_count(tensor.shape, tensor.name), {}, 0};
        offset += tensor.size.count();
      }
    }
    incomplete = targets.size();
  }

  std::unique_ptr<OutputFile> text_file(std::string_view name, const std::string& text) const {
    auto file =
        std::make_unique<OutputFile>(folder.file(name), Bytes(static_cast<int64_t>(text.size())));
    file->write(text);
    file->close();
    return file;
  }

  void check_free_space() const {
    Bytes total;
    for (const ShardPlan& shard : shards) {
      total += shard.data_size;
    }
    std::error_code error;
    const auto space = fs::space(folder.path(), error);
    if (!error && space.available < static_cast<uint64_t>(total.count())) {
      throw IoError("not enough free disk space for the model",
                    {.path = folder.path(),
                     .expected_bytes = total.count(),
                     .actual_bytes = static_cast<int64_t>(space.available),
                     .error_number = ENOSPC});
    }
  }

  void copy_companions() {
    std::error_code error;
    if (options.copy_from.empty() || fs::equivalent(options.copy_from, folder.path(), error)) {
      return;
    }
    for (const char* name : kCompanions) {
      const std::string from = (fs::path(options.copy_from) / name).string();
      if (!fs::exists(from, error)) {
        continue;
      }
      const InputFile source(from);
      others.push_back(std::make_unique<OutputFile>(folder.file(name), source.size()));
      copy_file(from, *others.back(), source);
    }
  }

  // Begun with its header.
  OutputFile& file_of(size_t number) {
    std::unique_ptr<OutputFile>& file = weights[number];
    if (file == nullptr) {
      const ShardPlan& shard = shards[number];
      const std::string header = make_safetensors_header(shard.tensors);
      const Bytes size = shard.data_size + Bytes(static_cast<int64_t>(header.size()));
      file = std::make_unique<OutputFile>(folder.file(shard.file_name), size);
      file->write(header);
    }
    return *file;
  }

  // The parts of a tensor come in order, each once.
  Target& target_of(const ParameterSpec& parameter) {
    const auto found = targets.find(parameter.name);
    HR_CHECK(found != targets.end(), "{} is no tensor of the model", parameter.name);
    Target& target = found->second;
    const Elements next = parameter.columns > 0 ? Elements(target.columns) : target.written;
    HR_CHECK(parameter.first == next && parameter.count <= target.count - target.written,
             "elements of {} from {} on come after {} of {}", parameter.name,
             parameter.first.count(), next.count(), target.count.count());
    return target;
  }

  void write_parameter(const ParameterSpec& parameter, const ReadModule& read) {
    Target& target = target_of(parameter);
    OutputFile& file = file_of(target.shard);
    const int64_t width = size_of(options.dtype).count();
    for (int64_t done = 0; done < parameter.count.count();) {
      const int64_t step = std::min(parameter.count.count() - done, kChunkElements);
      const auto part = std::span(values).first(static_cast<size_t>(step));
      read(parameter.offset + Elements(done), part);
      const std::span<const std::byte> bytes = converter.convert(part);
      for_runs(parameter.part(), done, step, [&](int64_t first, int64_t at, int64_t count) {
        file.write_at(
            target.offset + first * width,
            bytes.subspan(static_cast<size_t>(at * width), static_cast<size_t>(count * width)));
      });
      done += step;
    }
    if (const int64_t overflows = converter.take_overflows(); overflows > 0) {
      log_warning("{}: {} values are beyond the range of f16 and became infinite", parameter.name,
                  overflows);
    }
    target.written += parameter.count;
    target.columns += parameter.columns;
    incomplete -= target.written == target.count ? 1 : 0;
    if (file.is_complete()) {
      file.close();
    }
  }

  void remove_stale_shards(const std::vector<std::string>& old_shards) const {
    std::set<std::string> current;
    for (const ShardPlan& shard : shards) {
      current.insert(shard.file_name);
    }
    for (const std::string& name : old_shards) {
      if (!current.contains(name)) {
        folder.remove(name);
      }
    }
  }

  // A reader that comes in between must find the old model, the new one, or an incomplete folder,
  // never shards of both: readers look for the single file first, and for shards by the index.
  void replace() {
    const std::vector<std::string> old_shards = shards_in_index(folder.file(kIndexFile));
    if (!index) {
      weights.front()->rename_to_target();
      folder.remove(kIndexFile);
    } else {
      folder.remove(kIndexFile);
      for (const auto& file : weights) {
        file->rename_to_target();
      }
      index->rename_to_target();
      folder.remove(kSingleFile);
    }
    remove_stale_shards(old_shards);
    for (const auto& file : others) {
      file->rename_to_target();
    }
  }
};

CheckpointWriter::CheckpointWriter(std::string folder, const ModelConfig& config,
                                   const std::vector<ModuleSpec>& modules, Options options) {
  HR_CHECK(!modules.empty(), "a model without modules");
  // Everything that can fail before the weights is done first.
  torch_name(options.dtype);
  const std::string config_text =
      options.copy_from.empty()
          ? (options.config_json.empty() ? to_config_json(config, options.dtype)
                                         : options.config_json)
          : copied_config(options.copy_from, options.dtype, modules);
  state_ = std::make_unique<State>(std::move(folder), modules, std::move(options));
  state_->check_free_space();
  state_->others.push_back(state_->text_file("config.json", config_text));
  state_->copy_companions();
  if (state_->shards.size() > 1) {
    state_->index = state_->text_file(kIndexFile, make_index_json(state_->shards));
  }
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::write_module(const ModuleSpec& module, const ReadModule& read) {
  for (const ParameterSpec& parameter : module.parameters) {
    state_->write_parameter(parameter, read);
  }
}

void CheckpointWriter::finish() {
  State& state = *state_;
  HR_CHECK(state.incomplete == 0, "{} of {} tensors are not complete", state.incomplete,
           state.targets.size());
  state.folder.sync();
  state.replace();
  state.folder.sync();
}

}  // namespace headrace::model
