#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "device/kernels.h"
#include "model/model_config.h"

namespace headrace::model {

/// A linear layer inside a module's packed vector, or a part of one: y = x weight^T + bias.
struct LinearLayout {
  Elements weight;  ///< offset of [outputs, inputs]
  std::optional<Elements> bias;
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t stride = 0;  ///< elements from one output's weights to the next one's

  /// Without a bias the part is one of a sum.
  LinearLayout rows(int64_t first, int64_t count) const;
  LinearLayout columns(int64_t first, int64_t count) const;
};

/// Elements of a packed vector that belong to no parameter.
struct Gap {
  Elements offset;
  Elements count;
};

/// The alignment gaps of a module, which stay zero in weights and gradients.
std::vector<Gap> gaps_of(const ModuleSpec& module);
/// Of a module that holds these rows of a matrix over the vocabulary.
std::vector<Gap> gaps_of(const VocabularyRange& rows, int64_t hidden_size);

/// Where the parameters of a block lie; the same for all blocks of a model.
struct BlockLayout {
  Elements input_norm;
  Elements post_attention_norm;
  Elements q_norm;  ///< with ModelConfig::qk_norm only, as k_norm
  Elements k_norm;
  LinearLayout q, k, v, o, gate, up, down;
  std::vector<Gap> gaps;

  explicit BlockLayout(const ModelConfig& config);
};

/// Where the parameters of the modules of a cut block lie.
struct AttentionNormsLayout {
  Elements input_norm;
  Elements q_norm;  ///< with ModelConfig::qk_norm only, as k_norm
  Elements k_norm;
  std::optional<Elements> o_bias;
  std::vector<Gap> gaps;

  explicit AttentionNormsLayout(const ModelConfig& config);
};
struct MlpNormsLayout {
  Elements norm;
  std::optional<Elements> down_bias;
  std::vector<Gap> gaps;

  explicit MlpNormsLayout(const ModelConfig& config);
};
struct AttentionTileLayout {
  LinearLayout q, k, v, o;
  std::vector<Gap> gaps;

  AttentionTileLayout(const ModelConfig& config, const TileRange& kv_heads);
};
struct MlpTileLayout {
  LinearLayout gate, up, down;
  std::vector<Gap> gaps;

  MlpTileLayout(const ModelConfig& config, const TileRange& rows);
};

/// A packed vector of weights or gradients on the device; null while planning.
class PackedVector {
 public:
  PackedVector(const void* data, DType dtype)
      : data_(static_cast<const std::byte*>(data)), dtype_(dtype) {}

  void* at(Elements offset) const {
    return data_ == nullptr ? nullptr
                            : const_cast<std::byte*>(data_) + bytes_for(offset, dtype_).count();
  }
  device::Matrix weight(const LinearLayout& linear) const {
    return {at(linear.weight), dtype_, linear.outputs, linear.inputs, linear.stride};
  }

 private:
  const std::byte* data_;
  DType dtype_;
};

}  // namespace headrace::model
