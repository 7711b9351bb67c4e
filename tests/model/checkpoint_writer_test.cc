#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "model/checkpoint.h"
#include "model/checkpoint_plan.h"
#include "tests/model/checkpoint_test_util.h"

namespace headrace::model {
namespace {

using Names = std::set<std::string>;

class CheckpointRoundTrip : public ::testing::TestWithParam<std::tuple<DType, int64_t>> {};

TEST_P(CheckpointRoundTrip, ValuesComeBack) {
  const auto [dtype, shard_size] = GetParam();
  const TempFolder folder;
  const std::string target = folder.file("a/b/model");
  write_test_model(target, little_config(), {.dtype = dtype, .max_shard_size = Bytes(shard_size)});
  expect_test_model(target, little_config());
  for (const std::string& name : names_in(target)) {
    EXPECT_THAT(name, ::testing::Not(::testing::HasSubstr("partial")));
  }
  const auto config = nlohmann::json::parse(read_bytes(target + "/config.json"));
  EXPECT_EQ(config.at("hidden_size"), 64);
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointRoundTrip,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Values(1, 30'000, 1'000'000'000)));

TEST(CheckpointPlan, ShardsFollowTheLimit) {
  const auto modules = module_specs(little_config());
  const auto shards = plan_shards(modules, DType::bf16, Bytes(30'000));
  ASSERT_GT(shards.size(), 2U);
  std::vector<std::string> written;
  for (size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(shards[i].file_name, "model-0000" + std::to_string(i + 1) + "-of-0000" +
                                       std::to_string(shards.size()) + ".safetensors");
    EXPECT_LE(shards[i].data_size, Bytes(30'000));
    for (const auto& tensor : shards[i].tensors) {
      written.push_back(tensor.name);
    }
  }
  std::vector<std::string> expected;
  for (const auto& module : modules) {
    for (const auto& parameter : module.parameters) {
      expected.push_back(parameter.name);
    }
  }
  EXPECT_EQ(written, expected);
  const auto index = nlohmann::json::parse(make_index_json(shards));
  EXPECT_EQ(index.at("metadata").at("total_size"), 2 * parameter_count(little_config()).count());
  EXPECT_EQ(index.at("weight_map").size(), expected.size());
  EXPECT_EQ(plan_shards(modules, DType::bf16, kGiB).front().file_name, "model.safetensors");
}

TEST(CheckpointWriter, WithoutFinishNothingStays) {
  const TempFolder folder;
  const auto modules = module_specs(little_config());
  const auto write_half = [&](const std::string& target) {
    CheckpointWriter writer(target, little_config(), modules, {.max_shard_size = Bytes(10'000)});
    writer.write_module(modules[0], [&](Elements first, std::span<float> out) {
      fill_test_values(modules[0], first, out);
    });
    writer.write_module(modules[1], [&](Elements first, std::span<float> out) {
      fill_test_values(modules[1], first, out);
    });
  };
  write_half(folder.file("new/model"));
  EXPECT_TRUE(names_in(folder.path()).empty());

  write_test_model(folder.file("old"), little_config(), {});
  const auto before = names_in(folder.file("old"));
  write_half(folder.file("old"));
  EXPECT_EQ(names_in(folder.file("old")), before);
  expect_test_model(folder.file("old"), little_config());
}

TEST(CheckpointWriter, FailingSourceLeavesTheOldModel) {
  const TempFolder folder;
  write_test_model(folder.path(), little_config(), {});
  const auto before = names_in(folder.path());
  const auto modules = module_specs(little_config());
  const auto write = [&] {
    CheckpointWriter writer(folder.path(), little_config(), modules, {});
    writer.write_module(modules[0], [](Elements, std::span<float>) {
      throw IoError("reading failed", {.path = "somewhere"});
    });
  };
  EXPECT_THROW(write(), IoError);
  EXPECT_EQ(names_in(folder.path()), before);
  expect_test_model(folder.path(), little_config());
}

TEST(CheckpointWriter, ModulesMissingOrTwiceAreAnInternalError) {
  const TempFolder folder;
  const auto modules = module_specs(little_config());
  CheckpointWriter writer(folder.file("m"), little_config(), modules, {});
  const auto nothing = [](Elements, std::span<float>) {};
  writer.write_module(modules[1], nothing);
  EXPECT_THROW(writer.write_module(modules[1], nothing), InternalError);
  EXPECT_THROW(writer.finish(), InternalError);
}

/// The tiles of a matrix, one after the other, make one tensor, by rows or by columns.
TEST(CheckpointWriter, TilesMakeTheSameFiles) {
  const TempFolder folder;
  const auto modules = module_specs(little_config());
  const auto tiles = tiled_module_specs(little_config(), 40, {1, 10});
  ASSERT_GT(tiles.size(), modules.size() + 2);
  const CheckpointWriter::Options options{.max_shard_size = Bytes(30'000)};
  write_test_model(folder.file("whole"), little_config(), options);
  {
    CheckpointWriter writer(folder.file("tiles"), little_config(), modules, options);
    for (const ModuleSpec& tile : tiles) {
      writer.write_module(
          tile, [&](Elements first, std::span<float> out) { fill_test_values(tile, first, out); });
    }
    writer.finish();
  }
  const auto names = names_in(folder.file("whole"));
  EXPECT_EQ(names_in(folder.file("tiles")), names);
  for (const std::string& name : names) {
    EXPECT_TRUE(read_text_file(folder.file("tiles/" + name), kMiB) ==
                read_text_file(folder.file("whole/" + name), kMiB))
        << name;
  }
  CheckpointWriter writer(folder.file("m"), little_config(), modules, {});
  writer.write_module(tiles[0], [](Elements, std::span<float>) {});
  EXPECT_THROW(writer.write_module(tiles[2], [](Elements, std::span<float>) {}), InternalError);
  EXPECT_THROW(writer.finish(), InternalError);
}

// A limit on the size of files stands in for a full disk: both fail a write half-way.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    ::signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_{};
  sighandler_t previous_handler_ = nullptr;
};

TEST(CheckpointWriter, FailingWriteIsAnIoErrorAndLeavesNothing) {
  const TempFolder folder;
  {
    const FileSizeLimit limit(50'000);
    expect_error<IoError>([&] { write_test_model(folder.file("m"), little_config(), {}); },
                          {folder.file("m/model.safetensors"), "File too large"});
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(CheckpointWriter, TargetThatCannotBeAFolder) {
  const TempFolder folder;
  const std::string file = folder.write("file", "mine");
  const auto write_to = [&](const std::string& target) {
    return [&, target] { write_test_model(target, little_config(), {}); };
  };
  expect_error<IoError>(write_to(file), {file, "must be a folder"});
  EXPECT_THROW(write_to(file + "/below")(), IoError);
  EXPECT_THROW(write_to("/proc/headrace/model")(), IoError);
  EXPECT_EQ(read_bytes(file), "mine");
  EXPECT_EQ(names_in(folder.path()), (Names{"file"}));
}

// The tests may run as root, who may write anywhere.
class AsNobody {
 public:
  AsNobody() : is_root_(::geteuid() == 0) {
    if (is_root_ && ::seteuid(65534) != 0) {
      throw std::runtime_error("seteuid failed");
    }
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;
  ~AsNobody() {
    if (is_root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }

 private:
  bool is_root_;
};

TEST(CheckpointWriter, TargetWithoutPermission) {
  using std::filesystem::perms;
  const TempFolder folder;
  std::filesystem::permissions(folder.path(), perms(0555));
  {
    const AsNobody nobody;
    expect_error<IoError>([&] { write_test_model(folder.path(), little_config(), {}); },
                          {folder.path(), "Permission denied"});
    expect_error<IoError>([&] { write_test_model(folder.file("m"), little_config(), {}); },
                          {folder.file("m"), "Permission denied"});
  }
  std::filesystem::permissions(folder.path(), perms::owner_all);
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(CheckpointWriter, ReplacingRemovesOnlyTheOldModel) {
  const TempFolder folder;
  const CheckpointWriter::Options single{.dtype = DType::f32};
  const CheckpointWriter::Options sharded{.dtype = DType::f32, .max_shard_size = Bytes(100'000)};
  folder.write("notes.txt", "mine");
  folder.write("model-extra.safetensors", "mine");
  const Names always = {"notes.txt", "model-extra.safetensors", "config.json"};
  const auto with = [&](Names names) {
    names.insert(always.begin(), always.end());
    return names;
  };

  write_test_model(folder.path(), little_config(), single);
  EXPECT_EQ(names_in(folder.path()), with({"model.safetensors"}));
  write_test_model(folder.path(), little_config(), sharded);
  const Names shards = names_in(folder.path());
  EXPECT_FALSE(shards.contains("model.safetensors"));
  EXPECT_TRUE(shards.contains("model.safetensors.index.json"));
  expect_test_model(folder.path(), little_config());
  write_test_model(folder.path(), little_config(),
                   {.dtype = DType::bf16, .max_shard_size = Bytes(100'000)});
  EXPECT_LT(names_in(folder.path()).size(), shards.size());
  expect_test_model(folder.path(), little_config());
  write_test_model(folder.path(), little_config(), single);
  EXPECT_EQ(names_in(folder.path()), with({"model.safetensors"}));
  expect_test_model(folder.path(), little_config());
}

TEST(CheckpointWriter, OldIndexCannotPointAtOtherFiles) {
  const TempFolder outer;
  outer.write("precious.safetensors", "mine");
  std::filesystem::create_directory(outer.file("m"));
  std::ofstream(outer.file("m/notes.txt")) << "mine";
  std::ofstream(outer.file("m/model.safetensors.index.json"))
      << R"({"weight_map":{"a":"../precious.safetensors","b":"notes.txt"}})";
  write_test_model(outer.file("m"), little_config(), {});
  EXPECT_TRUE(std::filesystem::exists(outer.file("precious.safetensors")));
  EXPECT_EQ(names_in(outer.file("m")), (Names{"config.json", "model.safetensors", "notes.txt"}));
}

TEST(CheckpointWriter, CopiesConfigKeysAndTokenizer) {
  const TempFolder source;
  const TempFolder target;
  write_test_model(source.path(), little_config(), {.dtype = DType::f32});
  auto config = nlohmann::ordered_json::parse(read_bytes(source.file("config.json")));
  config.erase("dtype");
  config["torch_dtype"] = "float32";
  config["unknown_to_us"] = {{"deep", {1, 2}}};
  source.write("config.json", config.dump());
  source.write("tokenizer.json", std::string(3 << 20, 't'));
  source.write("merges.txt", "");
  source.write("README.md", "stays");

  write_test_model(target.path(), little_config(),
                   {.dtype = DType::bf16, .copy_from = source.path()});
  config["torch_dtype"] = "bfloat16";
  EXPECT_EQ(nlohmann::ordered_json::parse(read_bytes(target.file("config.json"))), config);
  EXPECT_EQ(read_bytes(target.file("tokenizer.json")), std::string(3 << 20, 't'));
  EXPECT_EQ(names_in(target.path()),
            (Names{"config.json", "merges.txt", "model.safetensors", "tokenizer.json"}));

  ModelConfig other = little_config();
  other.vocab_size = 101;
  expect_error<InputError>(
      [&] { write_test_model(target.file("x"), other, {.copy_from = source.path()}); },
      {source.file("config.json"), "[97, 64]", "[101, 64]"});
  EXPECT_FALSE(std::filesystem::exists(target.file("x")));
}

TEST(CheckpointWriter, OverwritesTheModelItReadsFrom) {
  const TempFolder folder;
  write_test_model(folder.path(), little_config(), {.dtype = DType::f32});
  folder.write("tokenizer.json", "{}");
  const auto modules = module_specs(little_config());
  const CheckpointReader reader(folder.path());
  CheckpointWriter writer(folder.path(), little_config(), modules,
                          {.dtype = DType::f16, .copy_from = folder.path()});
  for (const ModuleSpec& module : modules) {
    writer.write_module(module, [&](Elements first, std::span<float> out) {
      fill_test_values(module, first, out);
    });
  }
  writer.finish();
  expect_test_model(folder.path(), little_config());
  EXPECT_EQ(names_in(folder.path()), (Names{"config.json", "model.safetensors", "tokenizer.json"}));
  std::vector<float> values(8);
  reader.read_f32("model.norm.weight", Elements(0), values);  // the old file, still open
  EXPECT_EQ(values[3], test_value("model.norm.weight", 3));
}

TEST(CheckpointWriter, RefusesIntegerDtypes) {
  const TempFolder folder;
  expect_error<InputError>(
      [&] { write_test_model(folder.file("m"), little_config(), {.dtype = DType::i32}); },
      {"i32", "bf16"});
}

}  // namespace
}  // namespace headrace::model
