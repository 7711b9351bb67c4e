#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/checkpoint.h"
#include "tests/model/checkpoint_test_util.h"

namespace headrace::model {
namespace {

CheckpointWriter::Options sharded_options() {
  CheckpointWriter::Options options;
  options.dtype = DType::f32;
  options.max_shard_size = Bytes(60'000);
  return options;
}

TEST(CheckpointReader, ReadsPartsOfATensorInEveryDtype) {
  // 1.0, -2.0, 0.5, 65504 (largest f16), 0 by hand in each format.
  const TempFolder folder;
  folder.write("config.json", to_config_json(little_config(), DType::f32));
  const std::string header = R"({"f":{"dtype":"F32","shape":[5],"data_offsets":[0,20]},)"
                             R"("b":{"dtype":"BF16","shape":[5],"data_offsets":[20,30]},)"
                             R"("h":{"dtype":"F16","shape":[5],"data_offsets":[30,40]},)"
                             R"("i":{"dtype":"I32","shape":[1],"data_offsets":[40,44]}})";
  folder.write("model.safetensors",
               safetensors_bytes(
                   header, bytes_of(std::vector<float>{1.0F, -2.0F, 0.5F, 65504.0F, 0.0F}) +
                               bytes_of(std::vector<uint16_t>{0x3f80, 0xc000, 0x3f00, 0x4780, 0}) +
                               bytes_of(std::vector<uint16_t>{0x3c00, 0xc000, 0x3800, 0x7bff, 0}) +
                               bytes_of(std::vector<int32_t>{7})));
  const CheckpointReader reader(folder.path());
  for (const std::string name : {"f", "b", "h"}) {
    std::vector<float> all(5);
    reader.read_f32(name, Elements(0), all);
    const float largest = name == "b" ? 65536.0F : 65504.0F;
    EXPECT_EQ(all, (std::vector<float>{1.0F, -2.0F, 0.5F, largest, 0.0F})) << name;
    std::vector<float> part(2);
    reader.read_f32(name, Elements(1), part);
    EXPECT_EQ(part, (std::vector<float>{-2.0F, 0.5F})) << name;
    EXPECT_THROW(reader.read_f32(name, Elements(4), part), InternalError);
  }
  std::vector<float> one(1);
  expect_error<InputError>([&] { reader.read_f32("i", Elements(0), one); }, {"I32", "BF16"});
  expect_error<InputError>([&] { reader.read_f32("x", Elements(0), one); }, {"no tensor \"x\""});
}

TEST(CheckpointReader, ShrunkFileIsAnIoError) {
  const TempFolder folder;
  write_test_model(folder.path(), little_config(), {.dtype = DType::bf16});
  const CheckpointReader reader(folder.path());
  std::filesystem::resize_file(folder.file("model.safetensors"), 20'000);
  std::vector<float> values(64);
  EXPECT_THROW(reader.read_f32("model.norm.weight", Elements(0), values), IoError);
}

TEST(CheckpointReader, FolderErrorsSayWhatToDo) {
  const TempFolder folder;
  const auto open = [&] { CheckpointReader{folder.path()}; };
  expect_error<InputError>([&] { CheckpointReader{folder.file("none")}; },
                           {"not a folder", "hf download"});
  expect_error<InputError>(open, {folder.path(), "config.json"});
  folder.write("config.json", to_config_json(little_config(), DType::f32));
  expect_error<InputError>(open, {"neither model.safetensors nor model.safetensors.index.json"});
  folder.write("pytorch_model.bin", "x");
  expect_error<InputError>(open, {"pytorch_model.bin", "safetensors", "save_pretrained"});
  folder.write("model.safetensors.index.json", "{}");
  expect_error<InputError>(open, {"index.json", "weight_map"});
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"x","a":"y"}})");
  expect_error<InputError>(open, {"\"a\" appears twice"});
}

TEST(CheckpointReader, IndexMayNotLeaveTheFolder) {
  const TempFolder folder;
  folder.write("config.json", to_config_json(little_config(), DType::f32));
  for (const std::string name : {"../other.safetensors", "/etc/x.safetensors", "passwd"}) {
    nlohmann::json index;
    index["weight_map"]["a"] = name;
    folder.write("model.safetensors.index.json", index.dump());
    expect_error<InputError>([&] { CheckpointReader{folder.path()}; },
                             {"\"a\"", "expected a .safetensors file name", name});
  }
}

TEST(CheckpointReader, MissingShardsAreNamed) {
  const TempFolder folder;
  write_test_model(folder.path(), little_config(), sharded_options());
  ASSERT_GT(names_in(folder.path()).size(), 4U);
  std::string removed;
  for (const std::string& name : names_in(folder.path())) {
    if (name.starts_with("model-00002")) {
      removed = name;
    }
  }
  ASSERT_FALSE(removed.empty());
  std::filesystem::remove(folder.file(removed));
  expect_error<InputError>([&] { CheckpointReader{folder.path()}; },
                           {"index.json", "1 of ", removed});
}

TEST(CheckpointReader, TensorThatTheShardDoesNotHave) {
  const TempFolder folder;
  write_test_model(folder.path(), little_config(), sharded_options());
  const std::string path = folder.file("model.safetensors.index.json");
  auto index = nlohmann::json::parse(read_bytes(path));
  const std::string shard = index["weight_map"]["model.embed_tokens.weight"];
  index["weight_map"]["model.extra.weight"] = shard;
  folder.write("model.safetensors.index.json", index.dump());
  expect_error<InputError>([&] { CheckpointReader{folder.path()}; },
                           {"\"model.extra.weight\"", shard, "is not"});
}

TEST(CheckpointReader, CheckNamesWhatDoesNotFit) {
  const TempFolder folder;
  write_test_model(folder.path(), little_config(), {.dtype = DType::bf16});
  const CheckpointReader reader(folder.path());
  EXPECT_NO_THROW(reader.check(module_specs(little_config())));

  ModelConfig deeper = little_config();
  deeper.layers = 3;
  expect_error<InputError>([&] { reader.check(module_specs(deeper)); },
                           {folder.path(), "9 of the 30 tensors", "model.layers.2."});
  ModelConfig wider = little_config();
  wider.intermediate_size = 128;
  expect_error<InputError>([&] { reader.check(module_specs(wider)); },
                           {"model.safetensors", "[96, 64]", "[128, 64]"});
  ModelConfig tied = little_config();
  tied.tie_word_embeddings = true;
  EXPECT_NO_THROW(reader.check(module_specs(tied)));
}

}  // namespace
}  // namespace headrace::model
