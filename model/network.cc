#include "model/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "model/network_block.h"
#include "model/network_block_tiles.h"
#include "model/network_head.h"
#include "model/network_layout.h"
#include "model/network_memory.h"
#include "model/network_ops.h"
#include "model/rope.h"

namespace headrace::model {

using device::Kernels;
using device::Stream;
using device::Workspace;

std::string fp8_obstacle(const ModelConfig& config, const BatchShape& shape) {
  struct Size {
    const char* name;
    int64_t value;
    const char* remedy;
  };
  constexpr const char* kOfModel = "leave the key out for this model";
  for (const auto& [name, value, remedy] :
       {Size{"hidden_size", config.hidden_size, kOfModel},
        Size{"intermediate_size", config.intermediate_size, kOfModel},
        Size{"head_dim", config.head_dim, kOfModel},
        Size{"the number of tokens of a micro-batch", shape.tokens(),
             "choose another --seq-len or --micro-batch, or leave the key out"}}) {
    if (value % device::kScaledUnit != 0) {
      return fmt::format("products in fp8 take multiples of {}, but {} is {}; {}",
                         device::kScaledUnit, name, value, remedy);
    }
  }
  return "";
}

struct Network::State {
  State(const ModelConfig& model_config, DType element_type, BatchShape batch_shape,
        device::Device& compute_device, int64_t vocab_tile, int64_t block_piece,
        bool computes_in_fp8);

  /// The workspace that `operation` (called with NetworkOps) takes.
  template <class Operation>
  Bytes plan(const Operation& operation) {
    WorkspaceStack stack;
    NetworkOps ops(device.kernels(), dtype, fp8_forward, nullptr, stack);
    operation(ops);
    return stack.peak();
  }
  /// Refuses a workspace below `needed` before anything is posted.
  template <class Operation>
  void run(Stream& stream, Workspace workspace, Bytes needed, const Operation& operation) {
    HR_CHECK(workspace.size >= needed, "a workspace of {} bytes, but {} are needed", workspace.size,
             needed);
    WorkspaceStack stack(workspace);
    NetworkOps ops(device.kernels(), dtype, fp8_forward, &stream, stack);
    operation(ops);
  }
  static void check(const SavedValues& saved) {
    HR_CHECK((saved.data != nullptr) == (saved.level != Recompute::block),
             "recompute level {} {} memory for saved values", static_cast<int>(saved.level),
             saved.data != nullptr ? "with" : "without");
  }
  void plan_block_tiles();
  void upload_rope_table();
  void make_borders();
  void copy_borders(Stream& stream, const DocumentBorders& borders);
  Bytes border_bytes() const { return bytes_for(Elements(shape.tokens()), DType::i32); }
  bool has_window() const { return config.sliding_window && *config.sliding_window < shape.seq; }
  int64_t border_parts() const {
    return shape.is_packed || has_window() ? 1 + (shape.is_packed ? 1 : 0) + (has_window() ? 1 : 0)
                                           : 0;
  }
  Positions positions() const;

  ModelConfig config;
  DType dtype;
  BatchShape shape;
  bool fp8_forward;
  device::Device& device;
  NetworkBlock block;
  NetworkBlockTiles block_tiles;
  NetworkHead head;
  std::unique_ptr<device::Memory> rope_memory;
  /// Of the DocumentBorders begins, where documents share a sequence, seen_from, where a window
  /// makes it other than begins, and seen_until; null: every token sees all of its sequence before
  /// it.
  std::unique_ptr<device::Memory> borders;
  Bytes block_forward_workspace;
  Bytes block_backward_workspace;
  Bytes block_tile_workspace;
  Bytes head_workspace;
  Bytes head_tile_workspace;
};

Network::State::State(const ModelConfig& model_config, DType element_type, BatchShape batch_shape,
                      device::Device& compute_device, int64_t vocab_tile, int64_t block_piece,
                      bool computes_in_fp8)
    : config(model_config),
      dtype(element_type),
      shape(batch_shape),
      fp8_forward(computes_in_fp8),
      device(compute_device),
      block(config, shape, dtype),
      block_tiles(config, shape, dtype, block_piece),
      head(config, shape, dtype, vocab_tile) {
  upload_rope_table();
  make_borders();
  for (const Recompute level : {Recompute::none, Recompute::mlp, Recompute::block}) {
    const SavedValues saved{level, nullptr};
    const auto forward = [&](NetworkOps& ops) {
      block.forward(ops, positions(), nullptr, nullptr, nullptr, saved);
    };
    const auto backward = [&](NetworkOps& ops) {
      block.backward(ops, positions(), nullptr, nullptr, nullptr, nullptr, nullptr, saved);
    };
    block_forward_workspace = std::max(block_forward_workspace, plan(forward));
    block_backward_workspace = std::max(block_backward_workspace, plan(backward));
  }
  plan_block_tiles();
  const NetworkHead::Inputs whole{.rows = head.all_rows()};
  head_workspace = plan([&](NetworkOps& ops) { head.forward_backward(ops, whole, nullptr, {}); });
  head_tile_workspace = plan([&](NetworkOps& ops) {
    head.fold(ops, whole, nullptr, nullptr);
    head.tile_gradients(ops, whole, nullptr, 1, nullptr, nullptr);
    head.finish(ops, whole, nullptr, nullptr, nullptr);
  });
}

/// Those of a sliding window alone are the same for every batch.
void Network::State::make_borders() {
  if (border_parts() == 0) {
    return;
  }
  borders = device.allocate(border_bytes() * border_parts());
  if (!shape.is_packed) {
    const DocumentBorders constant =
        whole_sequences(shape.tokens(), shape.seq, config.sliding_window);
    const auto stream = device.create_stream("borders");
    copy_borders(*stream, constant);
    stream->synchronize();
  }
}

void Network::State::copy_borders(Stream& stream, const DocumentBorders& source) {
  std::byte* target = borders->data();
  const auto copy = [&](const std::vector<int32_t>& part) {
    HR_CHECK(static_cast<int64_t>(part.size()) == shape.tokens(), "{} borders of {} tokens",
             part.size(), shape.tokens());
    stream.copy_async(target, part.data(), border_bytes());
    target += border_bytes().count();
  };
  if (shape.is_packed) {
    copy(source.begins);
  }
  if (has_window()) {
    copy(source.seen_from);
  }
  copy(source.seen_until);
}

Positions Network::State::positions() const {
  Positions positions;
  positions.cos_sin = reinterpret_cast<const float*>(rope_memory->data());
  if (borders != nullptr) {
    const auto* const first = reinterpret_cast<const int32_t*>(borders->data());
    const int32_t* const seen_until = first + (border_parts() - 1) * shape.tokens();
    positions.begins = shape.is_packed ? first : nullptr;
    positions.visible = {seen_until - shape.tokens(), seen_until};
  }
  return positions;
}

/// Pieces share their memory, so that of a tile does not depend on its size.
void Network::State::plan_block_tiles() {
  const NetworkBlockTiles::Tile heads{{0, config.kv_heads}, nullptr, nullptr};
  const NetworkBlockTiles::Tile rows{{0, config.intermediate_size}, nullptr, nullptr};
  block_tile_workspace = plan([&](NetworkOps& ops) {
    block_tiles.attention_forward(ops, positions(), heads, nullptr, nullptr, nullptr);
    block_tiles.mlp_forward(ops, rows, nullptr, nullptr, nullptr);
    block_tiles.mlp_backward(ops, rows, nullptr, nullptr, nullptr, nullptr);
    block_tiles.mlp_finish(ops, nullptr, nullptr, nullptr, nullptr, nullptr);
    block_tiles.attention_backward(ops, positions(), heads, nullptr, nullptr, nullptr, nullptr);
    block_tiles.attention_finish(ops, nullptr, nullptr, nullptr, nullptr, nullptr);
  });
}

void Network::State::upload_rope_table() {
  const std::vector<float> table = rope_table(config, shape.seq);
  const Bytes size = bytes_for(Elements(static_cast<int64_t>(table.size())), DType::f32);
  rope_memory = device.allocate(size);
  const auto stream = device.create_stream("rope table");
  stream->copy_async(rope_memory->data(), table.data(), size);
  stream->synchronize();
}

Network::Network(const ModelConfig& config, DType dtype, BatchShape shape, device::Device& device,
                 int64_t vocab_tile, int64_t block_piece, bool fp8_forward) {
  HR_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
           "a network cannot compute in {}", to_string(dtype));
  HR_CHECK(shape.batch > 0, "the batch has {} sequences", shape.batch);
  check_sequence_length(config, shape.seq);
  if (fp8_forward) {
    HR_CHECK(dtype != DType::f32, "products of f32 in e4m3");
    if (const std::string obstacle = fp8_obstacle(config, shape); !obstacle.empty()) {
      throw InputError("headrace.lossy_fp8_forward: " + obstacle);
    }
  }
  state_ =
      std::make_unique<State>(config, dtype, shape, device, vocab_tile, block_piece, fp8_forward);
}

Network::~Network() = default;

const ModelConfig& Network::config() const {
  return state_->config;
}
BatchShape Network::shape() const {
  return state_->shape;
}
Bytes Network::constant_bytes() const {
  return state_->rope_memory->size() +
         (state_->borders == nullptr ? Bytes(0) : state_->borders->size());
}

void Network::set_documents(Stream& stream, const DocumentBorders& borders) {
  HR_CHECK(state_->shape.is_packed, "documents for a shape that is not packed");
  state_->copy_borders(stream, borders);
}
Bytes Network::block_forward_workspace() const {
  return state_->block_forward_workspace;
}
Bytes Network::block_backward_workspace() const {
  return state_->block_backward_workspace;
}
Bytes Network::head_workspace() const {
  return state_->head_workspace;
}
Bytes Network::head_tile_workspace() const {
  return state_->head_tile_workspace;
}
Bytes Network::embed_workspace() const {
  return Bytes(0);
}
int64_t Network::vocab_tile() const {
  return state_->head.vocab_tile();
}
VocabularyRange Network::whole_vocabulary() const {
  return state_->head.all_rows();
}

void Network::embed_forward(Stream& stream, VocabularyRange rows, const void* weights,
                            const int32_t* ids, void* out, Workspace workspace) {
  const State& s = *state_;
  state_->run(stream, workspace, embed_workspace(), [&](NetworkOps& ops) {
    ops.post([&](Kernels& kernels, Stream& target) {
      kernels.embedding_forward(target,
                                dense_matrix(weights, s.dtype, rows.count, s.config.hidden_size),
                                {rows.first, s.config.vocab_size}, ids,
                                dense_matrix(out, s.dtype, s.shape.tokens(), s.config.hidden_size));
    });
  });
}

void Network::embed_backward(Stream& stream, VocabularyRange rows, const int32_t* ids,
                             const void* dout, void* dweights, Workspace workspace) {
  const State& s = *state_;
  state_->run(stream, workspace, embed_workspace(), [&](NetworkOps& ops) {
    ops.post([&](Kernels& kernels, Stream& target) {
      kernels.embedding_backward(
          target, dense_matrix(dout, s.dtype, s.shape.tokens(), s.config.hidden_size), ids,
          dense_matrix(dweights, s.dtype, rows.count, s.config.hidden_size),
          {rows.first, s.config.vocab_size});
    });
    ops.zero_gaps(gaps_of(rows, s.config.hidden_size), PackedVector(dweights, s.dtype));
  });
}

void Network::block_forward(Stream& stream, const void* weights, const void* in, void* out,
                            SavedValues saved, Workspace workspace) {
  state_->check(saved);
  state_->run(stream, workspace, block_forward_workspace(), [&](NetworkOps& ops) {
    state_->block.forward(ops, state_->positions(), weights, in, out, saved);
  });
}

void Network::block_backward(Stream& stream, const void* weights, const void* in, const void* dout,
                             void* din, void* dweights, SavedValues saved, Workspace workspace) {
  state_->check(saved);
  state_->run(stream, workspace, block_backward_workspace(), [&](NetworkOps& ops) {
    state_->block.backward(ops, state_->positions(), weights, in, dout, din, dweights, saved);
  });
}

Bytes Network::saved_bytes(Recompute level) const {
  return state_->block.saved_bytes(level);
}

BlockCut Network::block_pieces() const {
  return state_->block_tiles.pieces();
}
Bytes Network::block_sum_bytes() const {
  return state_->block_tiles.sum_bytes();
}
Bytes Network::block_tile_workspace() const {
  return state_->block_tile_workspace;
}

void Network::attention_tile_forward(Stream& stream, const BlockTile& tile, const void* in,
                                     float* sum, void* out, Workspace workspace) {
  state_->run(stream, workspace, block_tile_workspace(), [&](NetworkOps& ops) {
    state_->block_tiles.attention_forward(ops, state_->positions(), tile, in, sum, out);
  });
}

void Network::mlp_tile_forward(Stream& stream, const BlockTile& tile, const void* in, float* sum,
                               void* out, Workspace workspace) {
  state_->run(stream, workspace, block_tile_workspace(),
              [&](NetworkOps& ops) { state_->block_tiles.mlp_forward(ops, tile, in, sum, out); });
}

void Network::mlp_tile_backward(Stream& stream, const BlockTile& tile, const void* in,
                                const void* dout, float* sum, void* dweights, Workspace workspace) {
  state_->run(stream, workspace, block_tile_workspace(), [&](NetworkOps& ops) {
    state_->block_tiles.mlp_backward(ops, tile, in, dout, sum, dweights);
  });
}

void Network::mlp_finish(Stream& stream, const void* norms, const void* in, const float* sum,
                         void* gradient, void* dnorms, Workspace workspace) {
  state_->run(stream, workspace, block_tile_workspace(), [&](NetworkOps& ops) {
    state_->block_tiles.mlp_finish(ops, norms, in, sum, gradient, dnorms);
  });
}

void Network::attention_tile_backward(Stream& stream, const BlockTile& tile, const void* in,
                                      const void* dout, float* sum, void* dweights,
                                      Workspace workspace) {
  state_->run(stream, workspace, block_tile_workspace(), [&](NetworkOps& ops) {
    state_->block_tiles.attention_backward(ops, state_->positions(), tile, in, dout, sum, dweights);
  });
}

void Network::attention_finish(Stream& stream, const void* norms, const void* in, const float* sum,
                               void* gradient, void* dnorms, Workspace workspace) {
  state_->run(stream, workspace, block_tile_workspace(), [&](NetworkOps& ops) {
    state_->block_tiles.attention_finish(ops, norms, in, sum, gradient, dnorms);
  });
}

void Network::head_forward(Stream& stream, const void* norm_weights, const void* head_weights,
                           const void* in, const int32_t* labels, double* loss_sum,
                           Workspace workspace) {
  state_->run(stream, workspace, head_workspace(), [&](NetworkOps& ops) {
    state_->head.forward(ops, {norm_weights, head_weights, in, labels, whole_vocabulary()},
                         loss_sum);
  });
}

void Network::head_forward_backward(Stream& stream, const void* norm_weights,
                                    const void* head_weights, const void* in, const int32_t* labels,
                                    float gradient_scale, double* loss_sum, void* din,
                                    void* dnorm_weights, void* dhead_weights, Workspace workspace) {
  state_->run(stream, workspace, head_workspace(), [&](NetworkOps& ops) {
    state_->head.forward_backward(ops, {norm_weights, head_weights, in, labels, whole_vocabulary()},
                                  loss_sum, {gradient_scale, din, dnorm_weights, dhead_weights});
  });
}

void Network::head_fold(Stream& stream, const HeadTile& tile, double* loss_sum,
                        Workspace workspace) {
  state_->run(stream, workspace, head_tile_workspace(), [&](NetworkOps& ops) {
    state_->head.fold(ops, {tile.norm_weights, tile.head_weights, tile.in, tile.labels, tile.rows},
                      tile.softmax, loss_sum);
  });
}

void Network::head_tile_gradients(Stream& stream, const HeadTile& tile, float gradient_scale,
                                  float* dx, void* dhead_weights, Workspace workspace) {
  state_->run(stream, workspace, head_tile_workspace(), [&](NetworkOps& ops) {
    state_->head.tile_gradients(
        ops, {tile.norm_weights, tile.head_weights, tile.in, tile.labels, tile.rows}, tile.softmax,
        gradient_scale, dx, dhead_weights);
  });
}

void Network::head_finish(Stream& stream, const void* norm_weights, const void* in, const float* dx,
                          void* din, void* dnorm_weights, Workspace workspace) {
  state_->run(stream, workspace, head_tile_workspace(), [&](NetworkOps& ops) {
    state_->head.finish(ops, {norm_weights, nullptr, in, nullptr}, dx, din, dnorm_weights);
  });
}

BlockFlops Network::block_forward_flops() const {
  return state_->block.forward_flops();
}
BlockFlops Network::block_backward_flops(Recompute level) const {
  return state_->block.backward_flops(level);
}
double Network::head_flops() const {
  return state_->head.flops();
}

}  // namespace headrace::model
