#include "proto/config_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "proto/ds_config.pb.h"
#include "proto/schema.h"

namespace headrace::proto {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

DsConfig read(const std::string& text) {
  return parse_config(text, "c.json").config;
}

std::string problem_of(const std::string& text) {
  try {
    parse_config(text, "c.json");
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

std::vector<std::string> notes_of(const std::string& text) {
  std::vector<std::string> texts;
  for (const Note& note : parse_config(text, "c.json").notes) {
    texts.push_back(note.text);
  }
  return texts;
}

struct ErrorCase {
  std::string text;
  std::vector<std::string> parts;  ///< of the message
};

class ConfigErrors : public testing::TestWithParam<ErrorCase> {};

TEST_P(ConfigErrors, NamePathAndRemedy) {
  const std::string problem = problem_of(GetParam().text);
  EXPECT_THAT(problem, HasSubstr("c.json"));
  for (const std::string& part : GetParam().parts) {
    EXPECT_THAT(problem, HasSubstr(part)) << GetParam().text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    UnknownKeys, ConfigErrors,
    testing::ValuesIn(std::vector<ErrorCase>{
        {R"({"gradient_clippng": 1.0})",
         {"\"gradient_clippng\": unknown key", "did you mean \"gradient_clipping\""}},
        {R"({"zero_optimisation": {"stage": 3}})",
         {"\"zero_optimisation\"", "did you mean \"zero_optimization\""}},
        {R"({"aio": {"thread_cuont": 4}})",
         {"\"aio.thread_cuont\"", "did you mean \"intra_op_parallelism\"",
          "known keys: block_size"}},
        {R"({"zero_optimization": {"offload_param": {"devise": "cpu"}}})",
         {"\"zero_optimization.offload_param.devise\"", "did you mean \"device\"",
          "known keys: device, nvme_path"}},
        {R"({"zero_optimization": {"offload_optimizer": {"buffer_size": 1e8}}})",
         {"\"zero_optimization.offload_optimizer.buffer_size\"",
          "zero_optimization.offload_param has a key of this name"}},
        {R"({"stage3_max_live_parameters": 1e9})", {"zero_optimization has a key of this name"}},
        {R"({"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}})",
         {"\"optimizer.params.learning_rate\""}},
        {R"({"headrace": {"devicememory": "1GiB"}})", {"did you mean \"device_memory\""}},
        {R"({"qqqqqqqqq": 1})", {"\"qqqqqqqqq\": unknown key"}},
        {R"({"": 1})", {"\"\": unknown key"}},
    }));

INSTANTIATE_TEST_SUITE_P(
    Types, ConfigErrors,
    testing::ValuesIn(std::vector<ErrorCase>{
        {R"([1])", {"expected a block {...}, got a list"}},
        {R"({"aio": 3})", {"aio: expected a block {...}, got the number 3"}},
        {R"({"bf16": true})", {"bf16: expected a block {...}, got true"}},
        {R"({"bf16": {"enabled": "true"}})",
         {"bf16.enabled: expected true or false or \"auto\", got the text \"true\"; remove the "
          "quotes"}},
        {R"({"aio": {"single_submit": "false"}})",
         {"aio.single_submit: expected true or false", "remove the quotes"}},
        {R"({"bf16": {"enabled": 1}})", {"got the number 1; write true"}},
        {R"({"bf16": {"enabled": [true]}})", {"got a list"}},
        {R"({"train_batch_size": 1.5})", {"expected an integer or \"auto\", got the number 1.5"}},
        {R"({"train_batch_size": "8"})", {"got the text \"8\"; remove the quotes"}},
        {R"({"train_batch_size": true})", {"expected an integer or \"auto\", got true"}},
        {R"({"train_batch_size": 1e30})", {"does not fit in 64 bits"}},
        {R"({"train_batch_size": 18446744073709551615})", {"does not fit in 64 bits"}},
        {R"({"fp16": {"loss_scale": false}})",
         {"fp16.loss_scale: expected a number or \"auto\", got false"}},
        {R"({"gradient_clipping": "1.0"})", {"expected a number", "remove the quotes"}},
        {R"({"gradient_clipping": {}})",
         {"gradient_clipping: expected a number or \"auto\", got a block"}},
        {R"({"zero_optimization": {"offload_param": {"nvme_path": 3}}})",
         {"offload_param.nvme_path: expected text or \"auto\", got the number 3"}},
        {R"({"zero_optimization": {"offload_param": {"device": "gpu"}}})",
         {"offload_param.device: expected one of none, cpu, nvme or \"auto\", got the text "
          "\"gpu\""}},
        {R"({"zero_optimization": {"offload_param": {"device": "nvm"}}})",
         {"did you mean \"nvme\"?"}},
        {R"({"optimizer": {"type": "AdamW", "params": {"betas": 0.9}}})",
         {"optimizer.params.betas: expected a list of 2 numbers or \"auto\", got the number 0.9"}},
        {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}})",
         {"expected a list of 2 numbers or \"auto\", got 1 of them"}},
        {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, "x"]}}})",
         {"optimizer.params.betas[1]: expected a number, got the text \"x\""}},
        {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, "auto"]}}})",
         {"betas[1]: expected a number", "only the whole list can be \"auto\""}},
        {R"({"headrace": {"device_memory": "64 parsecs"}})",
         {"headrace.device_memory: '64 parsecs' is not a size", "2GB, or \"auto\""}},
        {R"({"headrace": {"nvme_path": [1]}})",
         {"headrace.nvme_path[0]: expected text, got the number 1"}},
        {R"({"headrace": {"nvme_path": "a\u0000b"}})", {"zero character"}},
        {R"({"zero_optimization": "3"})", {"zero_optimization: expected a block"}},
        {R"({"zero_optimization": {"cpu_offload": "yes"}})",
         {"zero_optimization.cpu_offload: expected true or false"}},
    }));

INSTANTIATE_TEST_SUITE_P(
    Ranges, ConfigErrors,
    testing::ValuesIn(std::vector<ErrorCase>{
        {R"({"train_batch_size": 0})",
         {"train_batch_size: 0 is out of range; the value must be at least 1, in sequences, or "
          "\"auto\""}},
        {R"({"zero_optimization": {"stage": 4}})",
         {"zero_optimization.stage: 4 is out of range; the value must be from 0 to 3"}},
        {R"({"zero_optimization": {"stage": -1}})", {"zero_optimization.stage: -1"}},
        {R"({"zero_optimization": {"stage": 4294967299}})", {"out of range"}},
        {R"({"gradient_clipping": -1})", {"at least 0"}},
        {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1.0]}}})",
         {"betas[1]: 1.0 is out of range", "at least 0, below 1"}},
        {R"({"optimizer": {"type": "AdamW", "params": {"eps": 0}}})", {"above 0"}},
        {R"({"aio": {"block_size": 512}})", {"aio.block_size", "from 4096", "in bytes"}},
        {R"({"aio": {"queue_depth": 0}})", {"from 1 to 4096, in requests"}},
        {R"({"zero_optimization": {"sub_group_size": 0}})", {"at least 1, in elements"}},
        {R"({"zero_optimization": {"offload_optimizer": {"ratio": 1.5}}})",
         {"from 0 to 1, in ratio"}},
        {R"({"headrace": {"host_memory": "0"}})", {"headrace.host_memory", "at least 1"}},
        {R"({"fp16": {"initial_scale_power": 500}})", {"from 0 to 126"}},
    }));

INSTANTIATE_TEST_SUITE_P(
    Unsupported, ConfigErrors,
    testing::ValuesIn(std::vector<ErrorCase>{
        {R"({"optimizer": {"type": "OneBitAdam"}})",
         {"optimizer.type: OneBitAdam is not supported", "use AdamW"}},
        {R"({"optimizer": {"type": "adam", "params": {"max_grad_norm": 1.0}}})",
         {"optimizer.params.max_grad_norm: not supported", "gradient_clipping"}},
        {R"({"scheduler": {"type": "OneCycle"}})", {"scheduler.type: OneCycle", "WarmupCosineLR"}},
        {R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})",
         {"zero_optimization.zenflow: not supported", "remove the block"}},
        {R"({"zero_optimization": {"offload_optimizer": {"super_offload": true}}})",
         {"offload_optimizer.super_offload: not supported"}},
        {R"({"amp": {"enabled": true, "opt_level": "O1"}})", {"amp.enabled: not supported"}},
        {R"({"torch_autocast": {"enabled": true}})", {"torch_autocast.enabled", "bf16.enabled"}},
        {R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})",
         {"bf16.bf16_optimizer_states: not supported: moments are fp32"}},
        {R"({"checkpoint": {"load_universal": true}})", {"checkpoint.load_universal"}},
        {R"({"autotuning": {"enabled": true, "tuner_type": "random"}})", {"autotuning.enabled"}},
        {R"({"compression_training": {"weight_quantization": {}}})", {"compression_training"}},
    }));

INSTANTIATE_TEST_SUITE_P(
    Contradictions, ConfigErrors,
    testing::ValuesIn(std::vector<ErrorCase>{
        {R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": true}})",
         {"bf16: given twice, under two of its names"}},
        {R"({"zero_optimization": {"max_live_parameters": 1, "stage3_max_live_parameters": 1}})",
         {"zero_optimization.stage3_max_live_parameters: given twice"}},
        {R"({"aio": {"thread_count": 2, "num_threads": 2}})",
         {"aio.intra_op_parallelism: given twice"}},
        {R"({"aio": {"thread_count": 0}})",
         {"aio.intra_op_parallelism: 0 is out of range", "written as \"thread_count\""}},
        {R"({"zero_optimization": {"cpu_offload": true, "offload_optimizer": {"device": "nvme"}}})",
         {"zero_optimization.cpu_offload: given together with "
          "zero_optimization.offload_optimizer"}},
        {R"({"scheduler": {"params": {"warmup_num_steps": 3}}})", {"scheduler.type: missing"}},
        {R"({"optimizer": {}})", {"optimizer.type: missing; optimizer needs it"}},
        {R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 10}}})",
         {"scheduler.params.total_num_steps: WarmupLR has no such parameter",
          "WarmupDecayLR, WarmupCosineLR"}},
        {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_max_lr": "auto"}}})",
         {"WarmupCosineLR has no such parameter"}},
        {R"({"optimizer": {"type": "AdamW", "params": {"momentum": 0.9}}})",
         {"AdamW has no such parameter"}},
        {R"({"aio": {"block_size": "auto"}})",
         {"aio.block_size: expected an integer", "this key has no \"auto\""}},
    }));

/// {"a": {"b": value}} for "a.b".
std::string file_with(const std::string& path, const std::string& value) {
  const size_t dot = path.find('.');
  return "{\"" + path.substr(0, dot) +
         "\": " + (dot == std::string::npos ? value : file_with(path.substr(dot + 1), value)) + "}";
}

/// The part of the refusal of `value` that is about the key itself; empty: the key takes it.
std::string refusal_of_value(const std::string& path, const std::string& value) {
  try {
    parse_config(file_with(path, value), "c.json");
  } catch (const InputError& error) {
    const std::string text = error.what();
    const size_t begin = text.find(path + ": ");
    return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
  }
  return "";
}

TEST(ConfigParser, AWrongTypeIsToldOfAutoWhereTheKeyTakesIt) {
  int taking = 0;
  int refusing = 0;
  for_each_key(*DsConfig::descriptor(), "", [&](const std::string& path, const auto& field) {
    const bool is_block = field.message_type() != nullptr;
    const std::string refusal = refusal_of_value(path, is_block ? "3" : "{}");
    if (refusal.empty()) {
      return;  // in a block that is refused as a whole
    }
    // What is text takes the word as any other.
    const bool takes_auto = field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING
                                ? auto_text(field).has_value()
                                : refusal_of_value(path, "\"auto\"").empty();
    EXPECT_EQ(refusal.find(" or \"auto\", got ") != std::string::npos, takes_auto) << refusal;
    ++(takes_auto ? taking : refusing);
  });
  EXPECT_GT(taking, 50);
  EXPECT_GT(refusing, 100);
}

TEST(ConfigParser, AllProblemsAreReportedTogether) {
  const std::string problem = problem_of(
      R"({"a1": 1, "train_batch_size": 0, "fp16": {"enabled": "true", "x": 1}, "aio": []})");
  EXPECT_THAT(problem, HasSubstr("c.json: 5 problems:"));
  for (const char* part : {"\"a1\"", "train_batch_size", "fp16.enabled", "\"fp16.x\"", "aio:"}) {
    EXPECT_THAT(problem, HasSubstr(std::string("\n  - ") + part));
  }
}

TEST(ConfigParser, ManyProblemsAreCut) {
  std::string text = "{\"x0\": 0";
  for (int i = 1; i < 20'000; ++i) {
    text += ", \"x" + std::to_string(i) + "\": 0";
  }
  const std::string problem = problem_of(text + "}");
  EXPECT_THAT(problem, HasSubstr("at least 25 problems"));
  EXPECT_LT(problem.size(), 20'000U);
}

TEST(ConfigParser, OnlyWhatIsGivenIsSet) {
  const DsConfig config = read(R"({"gradient_clipping": 0.5, "zero_optimization": {"stage": 2}})");
  EXPECT_TRUE(config.has_gradient_clipping());
  EXPECT_FALSE(config.has_train_batch_size());
  EXPECT_FALSE(config.has_fp16());
  EXPECT_FALSE(config.zero_optimization().has_sub_group_size());
  EXPECT_EQ(config.zero_optimization().sub_group_size(), 1'000'000'000);
  EXPECT_EQ(config.zero_optimization().stage(), 2);
  EXPECT_FALSE(read(R"({"scheduler": null, "gradient_clipping": null})").has_scheduler());
}

TEST(ConfigParser, IntegersMayBeWrittenWithExponent) {
  const DsConfig config = read(
      R"({"zero_optimization": {"sub_group_size": 1e8, "stage": 3.0, "reduce_bucket_size": 5e8,
          "stage3_model_persistence_threshold": 9223372036854775807}})");
  EXPECT_EQ(config.zero_optimization().sub_group_size(), 100'000'000);
  EXPECT_EQ(config.zero_optimization().stage(), 3);
  EXPECT_EQ(config.zero_optimization().reduce_bucket_size(), 500'000'000);
}

TEST(ConfigParser, SizesMayBeTextOrNumbers) {
  const DsConfig config =
      read(R"({"headrace": {"device_memory": "64MiB", "host_memory": 1e9, "nvme_budget": "2GB"}})");
  EXPECT_EQ(config.headrace().device_memory(), 64 << 20);
  EXPECT_EQ(config.headrace().host_memory(), 1'000'000'000);
  EXPECT_EQ(config.headrace().nvme_budget(), 2'000'000'000);
}

TEST(ConfigParser, ListsMayBeSingleValues) {
  EXPECT_THAT(read(R"({"headrace": {"nvme_path": "/a"}})").headrace().nvme_path(),
              ElementsAre("/a"));
  EXPECT_THAT(read(R"({"headrace": {"nvme_path": ["/a", "/b"]}})").headrace().nvme_path(),
              ElementsAre("/a", "/b"));
}

TEST(ConfigParser, BothNamesOfStage3KeysAreCurrent) {
  const std::string text = R"({"zero_optimization": {"max_live_parameters": 7}})";
  EXPECT_EQ(read(text).zero_optimization().stage3_max_live_parameters(), 7);
  EXPECT_THAT(notes_of(text), IsEmpty());  // a name of its own, not an old one
}

TEST(ConfigParser, OldNamesWork) {
  struct Case {
    std::string text;
    std::string old_name;
    std::string new_name;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"bfloat16": {"enabled": true}})", "bfloat16", "bf16"},
           {R"({"aio": {"thread_count": 4}})", "aio.thread_count", "aio.intra_op_parallelism"},
           {R"({"aio": {"num_threads": 4}})", "aio.num_threads", "aio.intra_op_parallelism"},
           {R"({"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true}})",
            "stage3_gather_fp16_weights_on_model_save",
            "stage3_gather_16bit_weights_on_model_save"},
           {R"({"zero_optimization": {"cpu_offload": true}})", "cpu_offload", "offload_optimizer"},
           {R"({"zero_optimization": true})", "zero_optimization", "\"stage\": 1"},
       }) {
    const ParsedConfig parsed = parse_config(c.text, "c.json");
    ASSERT_FALSE(parsed.notes.empty()) << c.text;
    EXPECT_EQ(parsed.notes[0].level, LogLevel::warning);
    EXPECT_THAT(parsed.notes[0].text, HasSubstr(c.old_name));
    EXPECT_THAT(parsed.notes[0].text, HasSubstr(c.new_name));
  }
  EXPECT_TRUE(read(R"({"bfloat16": {"enabled": true}})").bf16().enabled());
  EXPECT_EQ(read(R"({"aio": {"thread_count": 4}})").aio().intra_op_parallelism(), 4);
}

TEST(ConfigParser, OldSwitchesBecomeBlocks) {
  const DsConfig on = read(
      R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_param": true}})");
  EXPECT_EQ(on.zero_optimization().offload_optimizer().device(), OffloadParam::cpu);
  EXPECT_EQ(on.zero_optimization().offload_param().device(), OffloadParam::cpu);
  EXPECT_FALSE(on.zero_optimization().has_cpu_offload());
  const DsConfig off = read(R"({"zero_optimization": {"cpu_offload": false}})");
  EXPECT_FALSE(off.zero_optimization().has_offload_optimizer());
  EXPECT_EQ(read(R"({"zero_optimization": true})").zero_optimization().stage(), 1);
  EXPECT_FALSE(read(R"({"zero_optimization": false})").has_zero_optimization());
}

TEST(ConfigParser, AutoIsRememberedByPath) {
  const DsConfig config = read(
      R"({"train_batch_size": "auto", "bfloat16": {"enabled": "auto"},
          "optimizer": {"type": "AdamW", "params": {"betas": "auto"}},
          "zero_optimization": {"prefetch_bucket_size": "auto", "sub_group_size": "auto",
                                "offload_param": {"nvme_path": "auto"}}})");
  EXPECT_TRUE(is_automatic(config, "train_batch_size"));
  EXPECT_TRUE(is_automatic(config, "bf16.enabled"));
  EXPECT_TRUE(is_automatic(config, "optimizer.params.betas"));
  EXPECT_TRUE(is_automatic(config, "zero_optimization.stage3_prefetch_bucket_size"));
  EXPECT_TRUE(is_automatic(config, "zero_optimization.sub_group_size"));
  EXPECT_TRUE(is_automatic(config, "zero_optimization.offload_param.nvme_path"));
  EXPECT_FALSE(is_automatic(config, "zero_optimization.stage"));
  EXPECT_FALSE(config.zero_optimization().has_sub_group_size());
}

TEST(ConfigParser, KeysWithoutEffectAreSaidOnce) {
  EXPECT_THAT(
      notes_of(R"({"zero_optimization": {"overlap_comm": true,
                                         "stage3_module_granularity_threshold": 1},
                   "aio": {"single_submit": false}})"),
      testing::UnorderedElementsAre(
          HasSubstr("zero_optimization.overlap_comm has no effect here: "),
          HasSubstr("zero_optimization.stage3_module_granularity_threshold has no effect here: "),
          HasSubstr("aio.single_submit has no effect here: ")));
}

TEST(ConfigParser, BlocksThatAreOffSayNothing) {
  EXPECT_THAT(notes_of(R"({"wandb": {"enabled": false, "project": "x"},
                           "amp": {"enabled": false, "opt_level": "O1"},
                           "autotuning": {"enabled": false, "fast": true, "arg_mappings": {}},
                           "zero_optimization": {"zenflow": null}})"),
              IsEmpty());
  EXPECT_THAT(notes_of(R"({"wandb": {"enabled": true, "project": "x"}})"),
              ElementsAre(HasSubstr("wandb has no effect here")));
}

TEST(ConfigParser, UnsupportedKeysMayHaveTheirDefault) {
  EXPECT_THAT(notes_of(R"({"zero_optimization": {"legacy_stage1": false, "mics_shard_size": -1,
                           "zero_quantized_weights": false, "zero_hpz_partition_size": 1},
                           "compression_training": {}})"),
              IsEmpty());
}

TEST(ConfigParser, TypesOfOptimizersIgnoreCase) {
  EXPECT_EQ(read(R"({"optimizer": {"type": "adam"}})").optimizer().type(), Optimizer::Adam);
  EXPECT_EQ(read(R"({"optimizer": {"type": "ADAMW"}})").optimizer().type(), Optimizer::AdamW);
}

TEST(ConfigParser, FilesThatCannotBeReadAreErrors) {
  EXPECT_THROW(load_config("/nonexistent/ds_config.json"), InputError);
  EXPECT_THROW(load_config(std::filesystem::temp_directory_path().string()), IoError);
}

TEST(ConfigParser, EndlessFilesAreRefused) {
  EXPECT_THROW(load_config("/dev/zero"), InputError);
}

}  // namespace
}  // namespace headrace::proto
