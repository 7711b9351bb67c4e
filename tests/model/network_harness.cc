#include "tests/model/network_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/parallel.h"

namespace headrace::model {

namespace {
constexpr int64_t kGuard = 256;
constexpr std::byte kGuardByte{0xA5};
}  // namespace

GuardedMemory::GuardedMemory(device::Device& device, Bytes size, int64_t skip)
    : size_(size), skip_(kGuard + skip), memory_(device.allocate(size + Bytes(2 * kGuard + skip))) {
  std::memset(memory_->data(), static_cast<int>(kGuardByte),
              static_cast<size_t>((size_ + Bytes(kGuard + skip_)).count()));
  std::memset(data(), 0, static_cast<size_t>(size_.count()));
}

void GuardedMemory::poison() {
  std::memset(data(), 0xFF, static_cast<size_t>(size_.count()));
}

bool GuardedMemory::guards_are_intact() const {
  const auto is_guard = [](std::byte byte) { return byte == kGuardByte; };
  const std::byte* const end = data() + size_.count();
  return std::all_of(memory_->data(), memory_->data() + skip_, is_guard) &&
         std::all_of(end, end + kGuard, is_guard);
}

std::vector<float> to_floats(const std::byte* data, DType dtype, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = load_float(data + i * size_of(dtype).count(), dtype);
  }
  return values;
}

void from_floats(const std::vector<float>& values, DType dtype, std::byte* data) {
  for (size_t i = 0; i < values.size(); ++i) {
    store_float(values[i], data + static_cast<int64_t>(i) * size_of(dtype).count(), dtype);
  }
}

NetworkHarness::NetworkHarness(const ModelConfig& config, DType dtype, BatchShape shape,
                               Options options)
    : options_(options),
      dtype_(dtype),
      device_(device::make_cpu_device()),
      network_(config, dtype, shape, *device_, options.vocab_tile, options.block_piece,
               options.fp8_forward),
      stream_(device_->create_stream("test")),
      modules_(tiled_module_specs(
          config, options.tile_rows > 0 ? options.tile_rows : config.vocab_size, options.cut)),
      per_block_(options.cut.is_cut()
                     ? static_cast<size_t>(2 + options.cut.attention_tiles(config) +
                                           options.cut.mlp_tiles(config))
                     : 1),
      tiles_((modules_.size() - static_cast<size_t>(config.layers) * per_block_ - 1) /
             (config.tie_word_embeddings ? 1 : 2)) {
  stream_->run_on_host([threads = options.threads] { set_parallel_threads(threads); });
  for (const ModuleSpec& module : modules_) {
    const Bytes size = bytes_for(module.count, dtype);
    packed_.push_back({std::make_unique<GuardedMemory>(*device_, size),
                       std::make_unique<GuardedMemory>(*device_, size)});
  }
  if (config.tie_word_embeddings) {
    // The head's own gradients; its weights are those of the embedding.
    for (size_t tile = 0; tile < tiles_; ++tile) {
      packed_.push_back({nullptr, std::make_unique<GuardedMemory>(
                                      *device_, bytes_for(modules_[tile].count, dtype))});
    }
  }
  const Elements activation_count = Elements(shape.tokens()) * config.hidden_size;
  activations_ = std::make_unique<GuardedMemory>(
      *device_, bytes_for(activation_count, dtype) * (config.layers + 3));
  saved_.resize(static_cast<size_t>(config.layers));
  if (options.recompute != Recompute::block) {
    for (auto& memory : saved_) {
      memory = std::make_unique<GuardedMemory>(*device_, network_.saved_bytes(options.recompute));
    }
  }
  const Bytes ids_size = bytes_for(Elements(shape.tokens()), DType::i32);
  ids_ = std::make_unique<GuardedMemory>(*device_, ids_size);
  labels_ = std::make_unique<GuardedMemory>(*device_, ids_size);
  loss_ = std::make_unique<GuardedMemory>(*device_, Bytes(sizeof(double)));
  softmax_ = std::make_unique<GuardedMemory>(*device_,
                                             bytes_for(Elements(shape.tokens()) * 3, DType::f32));
  normed_gradient_ =
      std::make_unique<GuardedMemory>(*device_, bytes_for(activation_count, DType::f32));
  block_sum_ = std::make_unique<GuardedMemory>(*device_, network_.block_sum_bytes());
  residual_ = std::make_unique<GuardedMemory>(*device_, bytes_for(activation_count, dtype));
}

void NetworkHarness::set_weights(
    const std::function<std::vector<float>(const ParameterSpec&)>& values) {
  for (size_t m = 0; m < modules_.size(); ++m) {
    for (const ParameterSpec& parameter : modules_[m].parameters) {
      ParameterSpec whole = parameter;
      whole.first = Elements(0);
      whole.count = Elements(std::accumulate(parameter.shape.begin(), parameter.shape.end(),
                                             int64_t{1}, std::multiplies<>()));
      const std::vector<float> all = values(whole);
      std::vector<float> part;
      for_runs(parameter.part(), 0, parameter.count.count(),
               [&](int64_t first, int64_t /*at*/, int64_t count) {
                 part.insert(part.end(), all.begin() + first, all.begin() + first + count);
               });
      from_floats(part, dtype_,
                  packed_[m].weights->data() + bytes_for(parameter.offset, dtype_).count());
    }
  }
}

void NetworkHarness::set_batch(const std::vector<int32_t>& ids, const std::vector<int32_t>& labels,
                               const DocumentBorders& documents) {
  std::memcpy(ids_->data(), ids.data(), ids.size() * sizeof(int32_t));
  std::memcpy(labels_->data(), labels.data(), labels.size() * sizeof(int32_t));
  if (network_.shape().is_packed) {
    documents_ = documents;
    network_.set_documents(*stream_, documents_);
  }
}

std::byte* NetworkHarness::activation(int64_t index) const {
  const Elements count = Elements(network_.shape().tokens()) * network_.config().hidden_size;
  return activations_->data() + (bytes_for(count, dtype_) * index).count();
}

/// A fresh one for every operation, alive until the stream has run.
device::Workspace NetworkHarness::workspace(Bytes size) {
  workspaces_.push_back(std::make_unique<GuardedMemory>(*device_, size, options_.workspace_skip));
  workspaces_.back()->poison();
  return workspaces_.back()->workspace();
}

SavedValues NetworkHarness::saved(int64_t layer) const {
  const GuardedMemory* memory = saved_[static_cast<size_t>(layer)].get();
  return memory == nullptr ? SavedValues{} : SavedValues{options_.recompute, memory->data()};
}

void NetworkHarness::forward() {
  for (const auto& memory : saved_) {
    if (memory != nullptr) {
      memory->poison();
    }
  }
  for (size_t tile = 0; tile < tiles_; ++tile) {
    network_.embed_forward(*stream_, vocabulary_range(modules_[tile]),
                           packed_[tile].weights->data(),
                           reinterpret_cast<const int32_t*>(ids_->data()), activation(0),
                           workspace(network_.embed_workspace()));
  }
  for (int64_t layer = 0; layer < network_.config().layers; ++layer) {
    if (options_.cut.is_cut()) {
      block_tiles_forward(layer);
      continue;
    }
    network_.block_forward(*stream_, packed_[block_index(layer)].weights->data(), activation(layer),
                           activation(layer + 1), saved(layer),
                           workspace(network_.block_forward_workspace()));
  }
}

Network::BlockTile NetworkHarness::attention_tile(int64_t layer, int64_t tile) const {
  return {attention_range(network_.config(), options_.cut, tile),
          packed_[block_index(layer)].weights->data(),
          packed_[attention_index(layer, tile)].weights->data()};
}

Network::BlockTile NetworkHarness::mlp_tile(int64_t layer, int64_t tile) const {
  return {mlp_range(network_.config(), options_.cut, tile),
          packed_[mlp_norms_index(layer)].weights->data(),
          packed_[mlp_index(layer, tile)].weights->data()};
}

/// What goes from tile to tile of a cut block, with nothing in it.
float* NetworkHarness::fresh_block_sum() {
  stream_->run_on_host([this] { block_sum_->poison(); });
  return reinterpret_cast<float*>(block_sum_->data());
}

void NetworkHarness::attention_tiles_forward(int64_t layer, std::byte* out) {
  float* const sum = fresh_block_sum();
  for (int64_t tile = 0; tile < options_.cut.attention_tiles(network_.config()); ++tile) {
    network_.attention_tile_forward(*stream_, attention_tile(layer, tile), activation(layer), sum,
                                    out, workspace(network_.block_tile_workspace()));
  }
}

void NetworkHarness::block_tiles_forward(int64_t layer) {
  std::byte* const out = activation(layer + 1);
  attention_tiles_forward(layer, out);
  float* const sum = fresh_block_sum();
  for (int64_t tile = 0; tile < options_.cut.mlp_tiles(network_.config()); ++tile) {
    network_.mlp_tile_forward(*stream_, mlp_tile(layer, tile), out, sum, out,
                              workspace(network_.block_tile_workspace()));
  }
}

/// `gradient` is that of the block's output before and of its input afterwards.
void NetworkHarness::block_tiles_backward(int64_t layer, std::byte* gradient) {
  const Bytes size = network_.block_tile_workspace();
  const BlockCut& cut = options_.cut;
  const Module& attention_norms = packed_[block_index(layer)];
  const Module& mlp_norms = packed_[mlp_norms_index(layer)];
  attention_tiles_forward(layer, residual_->data());
  float* sum = fresh_block_sum();
  for (int64_t tile = cut.mlp_tiles(network_.config()); tile-- > 0;) {
    network_.mlp_tile_backward(*stream_, mlp_tile(layer, tile), residual_->data(), gradient, sum,
                               packed_[mlp_index(layer, tile)].gradient->data(), workspace(size));
  }
  network_.mlp_finish(*stream_, mlp_norms.weights->data(), residual_->data(), sum, gradient,
                      mlp_norms.gradient->data(), workspace(size));
  sum = fresh_block_sum();
  for (int64_t tile = cut.attention_tiles(network_.config()); tile-- > 0;) {
    network_.attention_tile_backward(
        *stream_, attention_tile(layer, tile), activation(layer), gradient, sum,
        packed_[attention_index(layer, tile)].gradient->data(), workspace(size));
  }
  network_.attention_finish(*stream_, attention_norms.weights->data(), activation(layer), sum,
                            gradient, attention_norms.gradient->data(), workspace(size));
}

void NetworkHarness::finish() {
  stream_->synchronize();
  for (const auto& used : workspaces_) {
    EXPECT_TRUE(used->guards_are_intact()) << "a workspace of " << used->size().count() << " bytes";
  }
  workspaces_.clear();
  for (const auto& memory : saved_) {
    EXPECT_TRUE(memory == nullptr || memory->guards_are_intact());
  }
  EXPECT_TRUE(activations_->guards_are_intact());
  for (const auto* memory : {&loss_, &softmax_, &normed_gradient_, &block_sum_, &residual_}) {
    EXPECT_TRUE((*memory)->guards_are_intact());
  }
  for (const Module& module : packed_) {
    EXPECT_TRUE(module.gradient->guards_are_intact());
  }
}

double NetworkHarness::loss() {
  forward();
  auto* const loss_sum = reinterpret_cast<double*>(loss_->data());
  softmax_->poison();
  for (size_t tile = 0; tiles_ > 1 && tile < tiles_; ++tile) {
    network_.head_fold(*stream_, head_tile(tile), loss_sum,
                       workspace(network_.head_tile_workspace()));
  }
  if (tiles_ == 1) {
    const Network::HeadTile whole = head_tile(0);
    network_.head_forward(*stream_, whole.norm_weights, whole.head_weights, whole.in, whole.labels,
                          loss_sum, workspace(network_.head_workspace()));
  }
  finish();
  double loss = 0;
  std::memcpy(&loss, loss_->data(), sizeof loss);
  return loss;
}

Network::HeadTile NetworkHarness::head_tile(size_t tile) {
  return {vocabulary_range(modules_[tile]),
          packed_[norm_index()].weights->data(),
          head_weights(tile),
          activation(network_.config().layers),
          reinterpret_cast<const int32_t*>(labels_->data()),
          reinterpret_cast<float*>(softmax_->data())};
}

/// In one go, or tile by tile; also gives the loss.
void NetworkHarness::head_backward(float scale, std::byte* din) {
  auto* const loss_sum = reinterpret_cast<double*>(loss_->data());
  std::byte* const dnorm = packed_[norm_index()].gradient->data();
  if (tiles_ == 1) {
    const Network::HeadTile whole = head_tile(0);
    network_.head_forward_backward(
        *stream_, whole.norm_weights, whole.head_weights, whole.in, whole.labels, scale, loss_sum,
        din, dnorm, head_module(0).gradient->data(), workspace(network_.head_workspace()));
    return;
  }
  const Bytes size = network_.head_tile_workspace();
  auto* const dx = reinterpret_cast<float*>(normed_gradient_->data());
  softmax_->poison();
  normed_gradient_->poison();
  for (size_t tile = 0; tile < tiles_; ++tile) {
    network_.head_fold(*stream_, head_tile(tile), loss_sum, workspace(size));
  }
  for (size_t tile = tiles_; tile-- > 0;) {
    network_.head_tile_gradients(*stream_, head_tile(tile), scale, dx,
                                 head_module(tile).gradient->data(), workspace(size));
  }
  network_.head_finish(*stream_, packed_[norm_index()].weights->data(),
                       activation(network_.config().layers), dx, din, dnorm, workspace(size));
}

double NetworkHarness::loss_and_gradients(float scale, NamedValues& gradients) {
  for (Module& module : packed_) {
    module.gradient->poison();
  }
  forward();
  const int64_t layers = network_.config().layers;
  int64_t current = layers + 1;
  head_backward(scale, activation(current));
  for (int64_t layer = layers - 1; layer >= 0; --layer) {
    if (options_.cut.is_cut()) {
      block_tiles_backward(layer, activation(current));
      continue;
    }
    Module& module = packed_[block_index(layer)];
    const int64_t next = options_.din_is_dout ? current : 2 * layers + 3 - current;
    network_.block_backward(*stream_, module.weights->data(), activation(layer),
                            activation(current), activation(next), module.gradient->data(),
                            saved(layer), workspace(network_.block_backward_workspace()));
    current = next;
  }
  for (size_t tile = tiles_; tile-- > 0;) {
    network_.embed_backward(*stream_, vocabulary_range(modules_[tile]),
                            reinterpret_cast<const int32_t*>(ids_->data()), activation(current),
                            packed_[tile].gradient->data(), workspace(network_.embed_workspace()));
  }
  finish();
  gradients.clear();
  for (size_t m = 0; m < modules_.size(); ++m) {
    collect(modules_[m], *packed_[m].gradient, gradients);
  }
  for (size_t tile = 0; tile < tiles_ && network_.config().tie_word_embeddings; ++tile) {
    collect(modules_[tile], *head_module(tile).gradient, gradients);
  }
  double loss = 0;
  std::memcpy(&loss, loss_->data(), sizeof loss);
  return loss;
}

/// Adds the module's gradients to `out`; expects zeros in the alignment gaps.
void NetworkHarness::collect(const ModuleSpec& module, const GuardedMemory& gradient,
                             NamedValues& out) const {
  const std::vector<float> all = to_floats(gradient.data(), dtype_, module.count.count());
  std::vector<bool> is_parameter(all.size(), false);
  for (const ParameterSpec& parameter : module.parameters) {
    std::vector<float>& sum = out[parameter.name];
    for_runs(parameter.part(), 0, parameter.count.count(),
             [&](int64_t first, int64_t from, int64_t count) {
               sum.resize(std::max(sum.size(), static_cast<size_t>(first + count)), 0.0F);
               for (int64_t i = 0; i < count; ++i) {
                 const auto at = static_cast<size_t>(parameter.offset.count() + from + i);
                 sum[static_cast<size_t>(first + i)] += all[at];
                 is_parameter[at] = true;
               }
             });
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (!is_parameter[i]) {
      EXPECT_EQ(all[i], 0.0F) << module.name << " gap at element " << i;
    }
  }
}

}  // namespace headrace::model
