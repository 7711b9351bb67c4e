#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "model/model_config.h"
#include "model/presets.h"  // IWYU pragma: export

namespace headrace::model {

/// One tensor of a safetensors file.
struct TensorEntry {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  Elements count;
  int64_t begin = 0;  ///< absolute byte offset in the file
  Bytes size;
  std::string path;  ///< of the file
};

/// The shape that config.json of a Hugging Face model folder states; no weights are needed. Throws
/// InputError.
ModelConfig load_model_config(const std::string& folder);

/// A Hugging Face model folder opened for reading: config.json and model.safetensors or a sharded
/// set with model.safetensors.index.json. Headers are read and checked in the constructor (sizes,
/// offsets, overlaps, shards present); tensor bytes are read on demand with pread, so a model
/// larger than memory can be streamed. Throws InputError naming file and tensor. Reading is
/// thread-safe.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& folder);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;
  ~CheckpointReader();

  const ModelConfig& config() const;
  const std::string& folder() const;
  const std::map<std::string, TensorEntry>& tensors() const;

  /// Checks that every parameter of the specs is there with its shape; tensors that are not used
  /// are logged once (a "lm_head.weight" beside tied embeddings and "rotary_emb.inv_freq" are
  /// silently fine).
  void check(const std::vector<ModuleSpec>& modules) const;

  /// Reads elements [first, first + out.size()) of the tensor, converted to fp32.
  void read_f32(const std::string& tensor, Elements first, std::span<float> out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a Hugging Face model folder: tensors laid out in the order of `modules`, sharded above
/// max_shard_size with an index, config.json, and the tokenizer and generation files of
/// `copy_from` (if not empty) copied along. Everything is written to `<folder>.partial-<pid>` style
/// temporary names, synced and renamed, so that the folder is never seen half-written; on error the
/// temporary files are removed. Throws IoError or InputError.
class CheckpointWriter {
 public:
  struct Options {
    DType dtype = DType::bf16;  ///< of the stored tensors
    Bytes max_shard_size{5'000'000'000};
    std::string copy_from = {};  ///< source model folder, for tokenizer files and config keys
    std::string config_json =
        {};  ///< config.json as is, where there is no source; "": to_config_json()
  };
  CheckpointWriter(std::string folder, const ModelConfig& config,
                   const std::vector<ModuleSpec>& modules, Options options);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  /// Called once for each module, or each of the tiles that make it up, in order (what is not a
  /// part of the same tensor may come in any order). `read` fills out with packed elements [first,
  /// first + out.size()) of the module as fp32 values.
  using ReadModule = std::function<void(Elements first, std::span<float> out)>;
  void write_module(const ModuleSpec& module, const ReadModule& read);
  /// Puts everything in place. Without it the destructor removes what was written.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Random weights in a Hugging Face folder: normal with std 0.02 (initializer_range), norms 1,
/// biases 0; a function of the seed alone, whatever the dtype. A model with the byte-level
/// vocabulary of model/presets.h is marked as such in its config.json.
void init_model(const ModelConfig& config, DType dtype, uint64_t seed, const std::string& folder);

}  // namespace headrace::model
