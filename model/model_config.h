#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "model/tensor_part.h"

namespace headrace::model {

enum class Family : uint8_t { llama, mistral, qwen2, qwen3 };

struct RopeScaling {
  enum class Kind : uint8_t { none, linear, llama3 } kind = Kind::none;
  double factor = 1;
  double low_freq_factor = 1;             ///< llama3
  double high_freq_factor = 4;            ///< llama3
  int64_t original_max_positions = 8192;  ///< llama3
};

/// The shape of a decoder-only network, as a Hugging Face config.json states it.
struct ModelConfig {
  Family family = Family::llama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< q, k, v biases (qwen2: always; llama, qwen3: config)
  bool output_bias = false;     ///< o_proj bias (llama with attention_bias)
  bool mlp_bias = false;
  bool qk_norm = false;                   ///< qwen3
  std::optional<int64_t> sliding_window;  ///< set only where the family applies it
  /// eos_token_id, of which there may be several; no part of the shape.
  std::vector<int64_t> end_tokens;
};

/// Reads config.json text; throws InputError naming the key (and `origin`, a path) for anything
/// that is missing, unsupported or out of range, with the list of supported families.
ModelConfig parse_model_config(const std::string& json_text, const std::string& origin);
/// config.json text that transformers loads.
std::string to_config_json(const ModelConfig& config, DType dtype);

/// Throws InputError if a sequence of this length cannot be trained (beyond max_positions or the
/// sliding window).
void check_sequence_length(const ModelConfig& config, int64_t seq);

/// How blocks are cut. A tile of attention has some key-value heads, with the query heads that read
/// them and the columns of o_proj that read those; a tile of the MLP has some rows of gate_proj and
/// up_proj and the columns of down_proj that read them. So each half of a block is a sum over its
/// tiles, and nothing passes between two tiles but that sum.
struct BlockCut {
  int64_t kv_heads = 0;  ///< per tile of attention
  int64_t mlp_rows = 0;  ///< per tile of the MLP; 0: blocks are whole
  bool is_cut() const { return mlp_rows > 0; }
  int64_t attention_tiles(const ModelConfig& config) const;
  int64_t mlp_tiles(const ModelConfig& config) const;

  bool operator==(const BlockCut&) const = default;
};

/// Key-value heads, or rows of the MLP, that a tile has.
struct TileRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
};
TileRange attention_range(const ModelConfig& config, const BlockCut& cut, int64_t tile);
/// Of key-value heads: the rows of k_proj and v_proj, and those of q_proj, as many columns of
/// o_proj, for the query heads that read them.
TileRange kv_rows(const ModelConfig& config, const TileRange& kv_heads);
TileRange q_rows(const ModelConfig& config, const TileRange& kv_heads);
TileRange mlp_range(const ModelConfig& config, const BlockCut& cut, int64_t tile);

/// One parameter tensor, or a part of it, inside a module's packed vector.
struct ParameterSpec {
  std::string name;            ///< Hugging Face name, "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  ///< of the whole tensor, as in the checkpoint
  Elements offset;             ///< in the module's packed vector
  Elements count;              ///< in this module
  Elements first = {};         ///< element of the tensor with which they begin
  bool decay = true;           ///< weight decay applies (DeepSpeed's single group: all)
  /// Columns of a matrix that the module has, from that of `first` on, of every row; 0: all, so
  /// that the elements follow each other in the tensor too.
  int64_t columns = 0;

  TensorPart part() const;
};

/// Parameters begin at multiples of this in a packed vector.
inline constexpr Elements kParameterAlignment{64};

/// A group of parameters that moves as one object: the embedding, one block, the final norm, the
/// head, or a tile of one of them.
struct ModuleSpec {
  /// "embed", "block.7", "norm", "head"; tiles: "embed.0", "head.3", "block.7.attention.norms",
  /// "block.7.attention.0", "block.7.mlp.norms", "block.7.mlp.2"
  std::string name;
  std::vector<ParameterSpec> parameters;
  Elements count;  ///< of the packed vector, parameters aligned to 64 elements (gaps stay zero)
};

/// Modules in forward order: embed, block.0 .. block.L-1, norm, and head unless embeddings are
/// tied.
std::vector<ModuleSpec> module_specs(const ModelConfig& config);
/// The same with the matrices over the vocabulary cut into tiles of `tile_rows` entries, the last
/// one smaller: embed.0 .. embed.N-1, the blocks, norm, and head.0 .. head.N-1. One tile that holds
/// the whole vocabulary is the module without tiles. A block that is cut is a module for the norms
/// of attention, its tiles, one for the norm of the MLP, and its tiles.
std::vector<ModuleSpec> tiled_module_specs(const ModelConfig& config, int64_t tile_rows,
                                           const BlockCut& cut = {});

/// Entries of the vocabulary whose rows a module holds, in their order.
struct VocabularyRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
};
/// Of "embed", "head" or a tile of one.
VocabularyRange vocabulary_range(const ModuleSpec& module);

/// The modules of a block that is cut: of each half its norms with the bias behind its sum, and
/// tiles.
ModuleSpec attention_norms_spec(const ModelConfig& config, int64_t layer);
ModuleSpec mlp_norms_spec(const ModelConfig& config, int64_t layer);
ModuleSpec attention_tile_spec(const ModelConfig& config, int64_t layer, int64_t tile,
                               const TileRange& kv_heads);
ModuleSpec mlp_tile_spec(const ModelConfig& config, int64_t layer, int64_t tile,
                         const TileRange& rows);

/// Parameters of the model without alignment gaps; tied weights once.
Elements parameter_count(const ModelConfig& config);

}  // namespace headrace::model
