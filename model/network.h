#pragma once

#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "base/units.h"
#include "device/device.h"
#include "device/kernels.h"
#include "model/block_flops.h"
#include "model/documents.h"
#include "model/model_config.h"
#include "model/recompute.h"

namespace headrace::model {

/// Shape of one micro-batch.
struct BatchShape {
  int64_t batch = 0;       ///< sequences
  int64_t seq = 0;         ///< tokens per sequence
  bool is_packed = false;  ///< a sequence is several documents that do not see each other
  int64_t tokens() const { return batch * seq; }
};

/// Deep enough that adding a product to the sum of those before costs little, beside the product.
inline constexpr int64_t kBlockPiece = 512;

/// Why linear layers of this model and micro-batch cannot compute in fp8; empty where they can.
std::string fp8_obstacle(const ModelConfig& config, const BatchShape& shape);

/// Forward and backward of the network, module by module, on a device stream. Weights and weight
/// gradients are packed vectors laid out by ModuleSpec, dtype T (f32, bf16 or f16); activations
/// [tokens, hidden] of dtype T. It owns only constants: the rope table (device memory, seq *
/// head_dim fp32) and, with a packed shape or a sliding window shorter than the sequences, what
/// tokens see (3 * tokens int32); everything else is given. Functions post work to the stream and
/// return; pointers must stay valid until it has run. One thread at a time.
class Network {
 public:
  /// `vocab_tile`: columns of the logits computed at a time; bounds the head's workspace.
  /// `block_piece`: columns of a cut block's inner matrices computed at a time.
  /// `fp8_forward`: linear layers of the blocks compute their outputs, also again, from operands
  /// rounded to e4m3 (bf16 and f16 only); gradients are those of the layers as they are. InputError
  /// where a size of the model or the batch is none that such products take.
  Network(const ModelConfig& config, DType dtype, BatchShape shape, device::Device& device,
          int64_t vocab_tile = 4096, int64_t block_piece = kBlockPiece, bool fp8_forward = false);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network();

  const ModelConfig& config() const;
  BatchShape shape() const;
  /// Device bytes of what it owns, to be charged to the device budget.
  Bytes constant_bytes() const;

  /// With a packed shape: the documents of the batch that the operations on blocks posted after
  /// this are for, with the model's window.
  void set_documents(device::Stream& stream, const DocumentBorders& borders);

  Bytes block_forward_workspace() const;  ///< of every recompute level
  Bytes block_backward_workspace() const;
  Bytes head_workspace() const;  ///< forward and backward
  /// Of each of head_fold, head_tile_gradients and head_finish.
  Bytes head_tile_workspace() const;
  Bytes embed_workspace() const;

  /// Operations on a part of the matrices over the vocabulary take the range that begins and ends
  /// at multiples of this, or where the vocabulary does.
  int64_t vocab_tile() const;
  VocabularyRange whole_vocabulary() const;

  /// out = table[ids] where an id is among the rows; ids [tokens] int32.
  void embed_forward(device::Stream& stream, VocabularyRange rows, const void* weights,
                     const int32_t* ids, void* out, device::Workspace workspace);
  /// dweights is overwritten (all rows).
  void embed_backward(device::Stream& stream, VocabularyRange rows, const int32_t* ids,
                      const void* dout, void* dweights, device::Workspace workspace);

  /// Leaves in `saved`, as its level says, what backward will not compute again.
  void block_forward(device::Stream& stream, const void* weights, const void* in, void* out,
                     SavedValues saved, device::Workspace workspace);
  /// Computes the block again from `in`, except what is in `saved`, whose content is lost. din and
  /// dweights are overwritten; din may alias dout.
  void block_backward(device::Stream& stream, const void* weights, const void* in, const void* dout,
                      void* din, void* dweights, SavedValues saved, device::Workspace workspace);
  /// Bytes that a block's forward pass saves; 0 where the whole block is computed again.
  Bytes saved_bytes(Recompute level) const;

  /// A block in pieces, where its weights come in tiles (BlockCut); the bits do not depend on the
  /// tiles. What lives from one to the next, on the device: `sum`, of block_sum_bytes(), begun by
  /// the first tile of each half and direction.
  struct BlockTile {
    TileRange range;                ///< key-value heads, or rows of the MLP; of whole pieces
    const void* norms = nullptr;    ///< packed weights of the half's norms
    const void* weights = nullptr;  ///< packed, of the tile
  };
  /// What tiles hold a multiple of, but for the last of a block.
  BlockCut block_pieces() const;
  Bytes block_sum_bytes() const;
  Bytes block_tile_workspace() const;  ///< of each of these functions
  /// Tiles in order. `in` is the block's input for attention, and the residual stream behind it,
  /// which the last tile of attention puts out, for the MLP. out may be `in`.
  void attention_tile_forward(device::Stream& stream, const BlockTile& tile, const void* in,
                              float* sum, void* out, device::Workspace workspace);
  void mlp_tile_forward(device::Stream& stream, const BlockTile& tile, const void* in, float* sum,
                        void* out, device::Workspace workspace);
  /// Tiles in reverse order; computed again from `in`. dweights (of the tile) is overwritten. Then
  /// finish, which makes of `gradient`, that of the half's output (dout), that of its input; dnorms
  /// is overwritten.
  void mlp_tile_backward(device::Stream& stream, const BlockTile& tile, const void* in,
                         const void* dout, float* sum, void* dweights, device::Workspace workspace);
  void mlp_finish(device::Stream& stream, const void* norms, const void* in, const float* sum,
                  void* gradient, void* dnorms, device::Workspace workspace);
  void attention_tile_backward(device::Stream& stream, const BlockTile& tile, const void* in,
                               const void* dout, float* sum, void* dweights,
                               device::Workspace workspace);
  void attention_finish(device::Stream& stream, const void* norms, const void* in, const float* sum,
                        void* gradient, void* dnorms, device::Workspace workspace);

  /// Final norm, head and cross-entropy over vocabulary tiles. labels [tokens] int32, -100 ignored,
  /// already shifted (labels[t] is the target of position t). *loss_sum (device double) = sum of
  /// losses of counted tokens.
  void head_forward(device::Stream& stream, const void* norm_weights, const void* head_weights,
                    const void* in, const int32_t* labels, double* loss_sum,
                    device::Workspace workspace);
  /// Forward and backward: also din, dnorm_weights, dhead_weights (overwritten). Gradients are
  /// those of loss_sum * gradient_scale.
  void head_forward_backward(device::Stream& stream, const void* norm_weights,
                             const void* head_weights, const void* in, const int32_t* labels,
                             float gradient_scale, double* loss_sum, void* din, void* dnorm_weights,
                             void* dhead_weights, device::Workspace workspace);

  /// The same in pieces, with the same bits, where the head's weights come in tiles: head_fold for
  /// all of them in order, head_tile_gradients in reverse order, head_finish. What lives from one
  /// to the next, on the device: `softmax`, [3, tokens] fp32, begun by the first fold; `dx`,
  /// [tokens, hidden] fp32, begun by the last tile's gradients.
  struct HeadTile {
    VocabularyRange rows;
    const void* norm_weights = nullptr;
    const void* head_weights = nullptr;  ///< packed, of the rows
    const void* in = nullptr;
    const int32_t* labels = nullptr;
    float* softmax = nullptr;
  };
  /// The last tile's gives *loss_sum.
  void head_fold(device::Stream& stream, const HeadTile& tile, double* loss_sum,
                 device::Workspace workspace);
  /// dhead_weights (of the rows) is overwritten, dx added to.
  void head_tile_gradients(device::Stream& stream, const HeadTile& tile, float gradient_scale,
                           float* dx, void* dhead_weights, device::Workspace workspace);
  /// din and dnorm_weights are overwritten.
  void head_finish(device::Stream& stream, const void* norm_weights, const void* in,
                   const float* dx, void* din, void* dnorm_weights, device::Workspace workspace);

  /// Floating point operations of each operation, for the cost model.
  BlockFlops block_forward_flops() const;
  BlockFlops block_backward_flops(Recompute level) const;
  double head_flops() const;  ///< forward and backward

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::model
