#include <gtest/gtest.h>

#include "base/error.h"
#include "model/model_config.h"
#include "model/network.h"
#include "tests/model/network_cases.h"
#include "tests/model/network_harness.h"

namespace headrace::model {
namespace {

/// 3 key-value heads and 28 rows of the MLP: neither is a multiple of all tiles.
ModelConfig wide_config() {
  ModelConfig config = everything_config();
  config.heads = 6;
  config.kv_heads = 3;
  return config;
}

/// Of two heads of queries.
constexpr int64_t kPerKvHead = 20;

BlockCut pieces_of(int64_t piece) {
  const auto device = device::make_cpu_device();
  return Network(wide_config(), DType::f32, {1, 8}, *device, 4096, piece).block_pieces();
}

double gradients_of(const ModelConfig& config, DType dtype, NetworkHarness::Options options,
                    NamedValues& gradients) {
  NetworkHarness harness(config, dtype, {2, 9}, options);
  prepare(harness, {4});
  const double loss = harness.loss_and_gradients(3, gradients);
  EXPECT_EQ(harness.loss(), loss);
  return loss;
}

TEST(BlockTiles, CutIntoOthersTheyChangeNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::optional<double> expected_loss;
    NamedValues expected;
    for (const BlockCut& cut :
         {BlockCut{3, 28}, BlockCut{1, 5}, BlockCut{2, 15}, BlockCut{3, 20}}) {
      NamedValues gradients;
      const double loss =
          gradients_of(wide_config(), dtype, {.cut = cut, .block_piece = 5}, gradients);
      if (!expected_loss) {
        expected_loss = loss;
        expected = gradients;
      }
      EXPECT_EQ(loss, *expected_loss);
      expect_same_bits(gradients, expected);
    }
  }
}

/// Several heads and more rows at a time, with smaller last pieces.
TEST(BlockTiles, OnlyRoundOtherwiseThanWholeBlocks) {
  NamedValues expected;
  const double expected_loss = gradients_of(wide_config(), DType::f32, {}, expected);
  for (const int64_t piece : {int64_t{1}, int64_t{12}, 2 * kPerKvHead}) {
    NamedValues gradients;
    const double loss = gradients_of(wide_config(), DType::f32,
                                     {.cut = pieces_of(piece), .block_piece = piece}, gradients);
    EXPECT_NEAR(loss, expected_loss, 1e-6 * expected_loss);
    ASSERT_EQ(gradients.size(), expected.size());
    for (const auto& [name, values] : gradients) {
      EXPECT_LE(relative_error(values, expected.at(name)), 1e-5) << name << " piece " << piece;
    }
  }
}

TEST(BlockTiles, PiecesAreWholeHeadsAndFitTheBlock) {
  EXPECT_EQ(pieces_of(1), (BlockCut{1, 1}));
  EXPECT_EQ(pieces_of(2 * kPerKvHead - 1), (BlockCut{1, 28}));
  EXPECT_EQ(pieces_of(2 * kPerKvHead), (BlockCut{2, 28}));
  EXPECT_EQ(pieces_of(512), (BlockCut{3, 28}));
}

TEST(BlockTiles, HaveEveryElementOfTheBlockOnce) {
  for (const BlockCut& cut : {BlockCut{1, 5}, BlockCut{2, 28}}) {
    std::map<std::string, std::vector<int>> seen;
    for (const ModuleSpec& module : module_specs(wide_config())) {
      for (const ParameterSpec& parameter : module.parameters) {
        seen[parameter.name].resize(static_cast<size_t>(parameter.count.count()));
      }
    }
    for (const ModuleSpec& module : tiled_module_specs(wide_config(), 37, cut)) {
      for (const ParameterSpec& parameter : module.parameters) {
        for_runs(parameter.part(), 0, parameter.count.count(),
                 [&](int64_t first, int64_t /*at*/, int64_t count) {
                   for (int64_t i = first; i < first + count; ++i) {
                     ++seen.at(parameter.name).at(static_cast<size_t>(i));
                   }
                 });
      }
    }
    for (const auto& [name, counts] : seen) {
      EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
    }
  }
}

TEST(TensorPart, OverlapsAreWhatRunsSay) {
  // Columns 2 to 4 of a matrix of 4 rows and 7 columns.
  const TensorPart part{2, 12, 3, 7};
  for (int64_t first = 0; first < 28; ++first) {
    for (int64_t count = 1; count <= 28 - first; ++count) {
      std::vector<int64_t> found(28, -1);
      for_overlaps(part, first, count, [&](int64_t at, int64_t to, int64_t length) {
        for (int64_t i = 0; i < length; ++i) {
          found.at(static_cast<size_t>(first + to + i)) = at + i;
        }
      });
      for (int64_t i = 0; i < 28; ++i) {
        const bool is_in = i >= first && i < first + count && i % 7 >= 2 && i % 7 <= 4;
        EXPECT_EQ(found[static_cast<size_t>(i)], is_in ? i / 7 * 3 + i % 7 - 2 : -1);
      }
    }
  }
}

TEST(BlockTiles, RefuseRangesThatCutAPiece) {
  const auto device = device::make_cpu_device();
  Network network(wide_config(), DType::f32, {1, 8}, *device, 10, 5);
  const auto memory = device->allocate(network.block_tile_workspace());
  const auto stream = device->create_stream("test");
  for (const TileRange range : {TileRange{0, 7}, TileRange{3, 10}}) {
    EXPECT_THROW(network.mlp_tile_forward(*stream, {.range = range}, nullptr, nullptr, nullptr,
                                          {memory->data(), network.block_tile_workspace()}),
                 InternalError);
  }
}

}  // namespace
}  // namespace headrace::model
