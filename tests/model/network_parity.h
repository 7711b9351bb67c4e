#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "tests/model/golden_file.h"
#include "tests/model/network_cases.h"
#include "tests/model/network_harness.h"

namespace headrace::model {

/// The model of one family with gradients by PyTorch (tests/golden/README.md).
class NetworkParity : public testing::TestWithParam<const char*> {
 protected:
  NetworkParity() : NetworkParity("gradients.safetensors") {
    loss_sum_ = parity_["gradients"]["loss_sum"];
  }
  /// Of a file that holds its loss. `window`: in the place of the model's.
  NetworkParity(const std::string& file, std::optional<int32_t> document_end,
                std::optional<int64_t> window)
      : NetworkParity(file) {
    loss_sum_ = double{golden_.read<float>("loss_sum").front()};
    document_end_ = document_end;
    window_ = window;
  }

 private:
  explicit NetworkParity(const std::string& file)
      : folder_(std::string(HEADRACE_SOURCE_DIR "/tests/golden/data/parity/") + GetParam()),
        reader_(folder_),
        golden_(folder_ + "/" + file),
        parity_(nlohmann::json::parse(std::ifstream(folder_ + "/parity.json"))) {}

 protected:
  std::unique_ptr<NetworkHarness> make_harness(DType dtype, NetworkHarness::Options options) {
    const BatchShape shape{parity_["gradients"]["batch"], parity_["gradients"]["seq"],
                           document_end_.has_value()};
    ModelConfig config = reader_.config();
    if (window_) {
      config.sliding_window = window_;
    }
    auto harness = std::make_unique<NetworkHarness>(config, dtype, shape, options);
    harness->set_weights([&](const ParameterSpec& parameter) {
      std::vector<float> values(static_cast<size_t>(parameter.count.count()));
      reader_.read_f32(parameter.name, Elements(0), values);
      return values;
    });
    const auto ids = golden_.read<int32_t>("input_ids");
    harness->set_batch(ids, golden_.read<int32_t>("labels"),
                       document_end_ ? find_documents(ids, shape.seq, *document_end_, window_)
                                     : DocumentBorders{});
    return harness;
  }

  /// Expects the loss and every gradient within the tolerances of PyTorch's fp32 values.
  void compare(DType dtype, const BlockCut& cut = {}) {
    const double loss_tolerance = dtype == DType::f32 ? 1e-6 : dtype == DType::bf16 ? 3e-3 : 4e-4;
    const double gradient_tolerance = dtype == DType::f32    ? 1e-5
                                      : dtype == DType::bf16 ? 0.04
                                                             : 0.005;
    const auto harness =
        make_harness(dtype, {.vocab_tile = 50, .cut = cut, .block_piece = kGoldenPiece});
    NamedValues gradients;
    const double loss = harness->loss_and_gradients(kUnscaled, gradients);
    EXPECT_NEAR(loss, loss_sum_, loss_tolerance * loss_sum_);
    EXPECT_EQ(harness->loss(), loss);
    for (const auto& [name, values] : gradients) {
      const double error = dtype == DType::f32
                               ? relative_error(values, golden_.read<float>("grad." + name))
                               : relative_distance(values, golden_.read<float>("grad." + name));
      EXPECT_LE(error, gradient_tolerance) << name;
    }
  }

  static constexpr int64_t kGoldenPiece = 16;

  std::string folder_;
  CheckpointReader reader_;
  GoldenFile golden_;
  nlohmann::json parity_;
  double loss_sum_ = 0;
  std::optional<int32_t> document_end_;  ///< of packed sequences
  std::optional<int64_t> window_;
};

}  // namespace headrace::model
