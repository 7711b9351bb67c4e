#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/device.h"
#include "model/documents.h"
#include "model/model_config.h"
#include "model/network.h"

namespace headrace::model {

using NamedValues = std::map<std::string, std::vector<float>>;

/// Device memory with guard bytes on both sides, `skip` bytes behind the page-aligned start.
class GuardedMemory {
 public:
  GuardedMemory(device::Device& device, Bytes size, int64_t skip = 64);
  std::byte* data() const { return memory_->data() + skip_; }
  Bytes size() const { return size_; }
  device::Workspace workspace() const { return {data(), size_}; }
  /// Fills with bytes that are NaN in every float type.
  void poison();
  bool guards_are_intact() const;

 private:
  Bytes size_;
  int64_t skip_;
  std::unique_ptr<device::Memory> memory_;
};

/// A whole network on the CPU device, run module by module as the engine does. Workspaces have
/// exactly the planned size, are poisoned before each operation and guarded; gradients are poisoned
/// too.
class NetworkHarness {
 public:
  struct Options {
    int64_t vocab_tile = 4096;
    int64_t workspace_skip = 64;
    bool din_is_dout = true;
    int threads = 1;  ///< of the kernels; more only wait for each other in networks this small
    int64_t tile_rows = 0;  ///< of the matrices over the vocabulary; 0: whole ones
    Recompute recompute = Recompute::block;
    BlockCut cut = {};
    int64_t block_piece = kBlockPiece;
    bool fp8_forward = false;
  };
  NetworkHarness(const ModelConfig& config, DType dtype, BatchShape shape)
      : NetworkHarness(config, dtype, shape, Options{}) {}
  NetworkHarness(const ModelConfig& config, DType dtype, BatchShape shape, Options options);

  /// Rounded to the dtype; `values` by parameter name.
  void set_weights(const std::function<std::vector<float>(const ParameterSpec&)>& values);
  /// `documents`: with a packed shape.
  void set_batch(const std::vector<int32_t>& ids, const std::vector<int32_t>& labels,
                 const DocumentBorders& documents = {});

  double loss();
  /// Loss and gradients of loss * scale, by parameter name, tied uses added up.
  double loss_and_gradients(float scale, NamedValues& gradients);

  Network& network() { return network_; }
  const std::vector<ModuleSpec>& modules() const { return modules_; }

 private:
  struct Module {
    std::unique_ptr<GuardedMemory> weights;
    std::unique_ptr<GuardedMemory> gradient;
  };
  /// Of the block, or of the norms of its attention where it is cut.
  size_t block_index(int64_t layer) const {
    return tiles_ + static_cast<size_t>(layer) * per_block_;
  }
  size_t attention_index(int64_t layer, int64_t tile) const {
    return block_index(layer) + 1 + static_cast<size_t>(tile);
  }
  size_t mlp_norms_index(int64_t layer) const {
    return attention_index(layer, options_.cut.attention_tiles(network_.config()));
  }
  size_t mlp_index(int64_t layer, int64_t tile) const {
    return mlp_norms_index(layer) + 1 + static_cast<size_t>(tile);
  }
  size_t norm_index() const { return block_index(network_.config().layers); }
  /// embed tiles, ..., norm, and the tiles of the head or of the tied head
  Module& head_module(size_t tile) { return packed_[norm_index() + 1 + tile]; }
  const std::byte* head_weights(size_t tile) {
    return (network_.config().tie_word_embeddings ? packed_[tile] : head_module(tile))
        .weights->data();
  }
  Network::HeadTile head_tile(size_t tile);
  std::byte* activation(int64_t index) const;
  device::Workspace workspace(Bytes size);
  SavedValues saved(int64_t layer) const;
  void forward();
  Network::BlockTile attention_tile(int64_t layer, int64_t tile) const;
  Network::BlockTile mlp_tile(int64_t layer, int64_t tile) const;
  float* fresh_block_sum();
  void attention_tiles_forward(int64_t layer, std::byte* out);
  void block_tiles_forward(int64_t layer);
  void block_tiles_backward(int64_t layer, std::byte* gradient);
  void head_backward(float scale, std::byte* din);
  void finish();
  void collect(const ModuleSpec& module, const GuardedMemory& gradient, NamedValues& out) const;

  Options options_;
  DType dtype_;
  std::unique_ptr<device::Device> device_;
  Network network_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<ModuleSpec> modules_;
  size_t per_block_;  ///< modules
  size_t tiles_;
  std::vector<Module> packed_;
  std::unique_ptr<GuardedMemory> activations_;         ///< layers + 1, then two gradients
  std::vector<std::unique_ptr<GuardedMemory>> saved_;  ///< [layer]; null: nothing is saved
  std::unique_ptr<GuardedMemory> ids_;
  std::unique_ptr<GuardedMemory> labels_;
  DocumentBorders documents_;
  std::unique_ptr<GuardedMemory> loss_;
  std::unique_ptr<GuardedMemory> softmax_;
  std::unique_ptr<GuardedMemory> normed_gradient_;
  std::unique_ptr<GuardedMemory> block_sum_;  ///< of a cut block, as residual_
  std::unique_ptr<GuardedMemory> residual_;   ///< behind attention
  std::vector<std::unique_ptr<GuardedMemory>> workspaces_;
};

/// Elements of the dtype as fp32, and back with rounding.
std::vector<float> to_floats(const std::byte* data, DType dtype, int64_t count);
void from_floats(const std::vector<float>& values, DType dtype, std::byte* data);

}  // namespace headrace::model
