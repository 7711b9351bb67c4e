#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace headrace::model {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 1000},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 512},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"}};
}

json of_family(const std::string& model_type) {
  json document = llama();
  document["model_type"] = model_type;
  return document;
}

ModelConfig parse(const json& document) {
  return parse_model_config(document.dump(), "m/config.json");
}

json with(json document, const std::string& key, const json& value) {
  document[key] = value;
  return document;
}

json without(json document, const std::string& key) {
  document.erase(key);
  return document;
}

std::string error_of(const json& document) {
  try {
    parse(document);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelConfig, ReadsLlama) {
  const ModelConfig config = parse(llama());
  EXPECT_EQ(config.family, Family::llama);
  EXPECT_EQ(config.vocab_size, 1000);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_FALSE(config.tie_word_embeddings || config.attention_bias || config.output_bias ||
               config.mlp_bias || config.qk_norm || config.sliding_window);
}

// The defaults of the configuration classes of transformers.
TEST(ModelConfig, AbsentKeysMeanTheFamilysDefaults) {
  EXPECT_EQ(parse(without(llama(), "num_key_value_heads")).kv_heads, 8);
  EXPECT_EQ(parse(with(llama(), "num_key_value_heads", nullptr)).kv_heads, 8);
  EXPECT_EQ(parse(without(llama(), "rms_norm_eps")).rms_norm_eps, 1e-6);
  EXPECT_FALSE(parse(without(llama(), "tie_word_embeddings")).tie_word_embeddings);
  EXPECT_EQ(parse(with(llama(), "head_dim", nullptr)).head_dim, 8);
  const json mistral = with(of_family("mistral"), "num_attention_heads", 16);
  EXPECT_EQ(parse(without(mistral, "num_key_value_heads")).kv_heads, 8);
  EXPECT_EQ(parse(mistral).sliding_window, 4096);
  EXPECT_EQ(parse(of_family("qwen3")).head_dim, 128);
}

TEST(ModelConfig, ExplicitHeadDim) {
  EXPECT_EQ(parse(with(llama(), "head_dim", 32)).head_dim, 32);
  EXPECT_EQ(parse(with(of_family("mistral"), "head_dim", 24)).head_dim, 24);
  EXPECT_THAT(error_of(with(llama(), "head_dim", 7)), HasSubstr("even"));
  // 64 is no multiple of 6 heads; fine once head_dim is given.
  const json six = with(with(llama(), "num_attention_heads", 6), "num_key_value_heads", 2);
  EXPECT_THAT(error_of(six), HasSubstr("divide hidden_size"));
  EXPECT_EQ(parse(with(six, "head_dim", 16)).head_dim, 16);
}

TEST(ModelConfig, BiasesAndNorms) {
  const ModelConfig biased = parse(with(with(llama(), "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(biased.attention_bias && biased.output_bias && biased.mlp_bias);
  const ModelConfig qwen2 = parse(of_family("qwen2"));
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.output_bias || qwen2.qk_norm);
  const ModelConfig qwen3 = parse(of_family("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.attention_bias || qwen3.output_bias);
  EXPECT_TRUE(parse(with(of_family("qwen3"), "attention_bias", true)).output_bias);
}

TEST(ModelConfig, RopeInOldAndNewLayout) {
  const json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 256}};
  for (const char* type_key : {"rope_type", "type"}) {
    const json scaling = with(llama3, type_key, "llama3");
    const json old_layout = with(with(llama(), "rope_scaling", scaling), "rope_theta", 500000.0);
    const json new_layout = with(llama(), "rope_parameters", with(scaling, "rope_theta", 500000.0));
    for (const json& document : {old_layout, new_layout}) {
      const ModelConfig config = parse(document);
      EXPECT_EQ(config.rope_theta, 500000);
      EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::llama3);
      EXPECT_EQ(config.rope_scaling.factor, 8);
      EXPECT_EQ(config.rope_scaling.low_freq_factor, 1);
      EXPECT_EQ(config.rope_scaling.high_freq_factor, 4);
      EXPECT_EQ(config.rope_scaling.original_max_positions, 256);
    }
  }
  const ModelConfig linear =
      parse(with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2}}));
  EXPECT_EQ(linear.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(linear.rope_scaling.factor, 2);
  const ModelConfig plain =
      parse(with(llama(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}));
  EXPECT_EQ(plain.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(plain.rope_theta, 1e6);
  EXPECT_EQ(parse(with(llama(), "rope_scaling", nullptr)).rope_theta, 10000);
}

TEST(ModelConfig, RefusesOtherRopeTypes) {
  for (const char* type : {"yarn", "dynamic", "longrope", "proportional"}) {
    EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"rope_type", type}, {"factor", 2}})),
                AllOf(HasSubstr("m/config.json"), HasSubstr("rope_scaling.rope_type"),
                      HasSubstr(type), HasSubstr("default, linear, llama3")));
  }
  EXPECT_THAT(
      error_of(with(llama(), "rope_parameters", {{"full_attention", {{"rope_type", "default"}}}})),
      HasSubstr("per layer type"));
  EXPECT_THAT(error_of(with(llama(), "rope_scaling", {{"type", "linear"}})),
              HasSubstr("rope_scaling.factor\" is missing"));
  EXPECT_THAT(error_of(with(llama(), "partial_rotary_factor", 0.5)),
              HasSubstr("partial_rotary_factor"));
}

TEST(ModelConfig, EndTokens) {
  EXPECT_TRUE(parse(llama()).end_tokens.empty());
  EXPECT_TRUE(parse(with(llama(), "eos_token_id", nullptr)).end_tokens.empty());
  EXPECT_TRUE(parse(with(llama(), "eos_token_id", "</s>")).end_tokens.empty());
  EXPECT_EQ(parse(with(llama(), "eos_token_id", 2)).end_tokens, (std::vector<int64_t>{2}));
  EXPECT_EQ(parse(with(llama(), "eos_token_id", {5, 7})).end_tokens, (std::vector<int64_t>{5, 7}));
}

TEST(ModelConfig, SlidingWindows) {
  EXPECT_EQ(parse(with(of_family("mistral"), "sliding_window", 128)).sliding_window, 128);
  EXPECT_FALSE(parse(with(of_family("mistral"), "sliding_window", nullptr)).sliding_window);
  EXPECT_FALSE(parse(with(llama(), "sliding_window", 128)).sliding_window);
  const json qwen = with(of_family("qwen2"), "sliding_window", 128);
  EXPECT_FALSE(parse(qwen).sliding_window);
  const json used = with(qwen, "use_sliding_window", true);
  EXPECT_FALSE(parse(used).sliding_window);  // max_window_layers 28 is above both layers
  EXPECT_EQ(parse(with(used, "max_window_layers", 0)).sliding_window, 128);
  EXPECT_THAT(error_of(with(used, "max_window_layers", 1)), HasSubstr("1 of 2 layers"));
  const json full = json::array({"full_attention", "full_attention"});
  const json sliding = json::array({"sliding_attention", "sliding_attention"});
  const json mixed = json::array({"full_attention", "sliding_attention"});
  EXPECT_FALSE(parse(with(used, "layer_types", full)).sliding_window);
  EXPECT_EQ(parse(with(used, "layer_types", sliding)).sliding_window, 128);
  EXPECT_THAT(error_of(with(used, "layer_types", mixed)), HasSubstr("mixture"));
  EXPECT_THAT(error_of(with(used, "layer_types", json::array({"full_attention"}))),
              HasSubstr("each of 2 layers"));
}

TEST(ModelConfig, RefusesWhatItCannotTrain) {
  EXPECT_THAT(error_of(with(llama(), "model_type", "gemma")),
              AllOf(HasSubstr("m/config.json"), HasSubstr("gemma"),
                    HasSubstr("llama, mistral, qwen2, qwen3")));
  EXPECT_THAT(error_of(without(llama(), "model_type")), HasSubstr("model_type\" is missing"));
  EXPECT_THAT(error_of(with(llama(), "quantization_config", {{"bits", 4}})),
              HasSubstr("quantization_config"));
  EXPECT_THAT(error_of(with(llama(), "num_local_experts", 8)), HasSubstr("mixture-of-experts"));
  EXPECT_THAT(error_of(with(llama(), "hidden_act", "gelu")), HasSubstr("silu"));
}

TEST(ModelConfig, RefusesSizesThatMakeNoSense) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings"}) {
    for (const json& value : {json(0), json(-8), json(1.5), json("64"), json(INT64_MAX),
                              json(UINT64_MAX), json(true), json::array({1})}) {
      EXPECT_THAT(error_of(with(llama(), key, value)),
                  AllOf(HasSubstr("m/config.json"), HasSubstr(key)))
          << value;
    }
    if (std::string(key) != "num_key_value_heads") {
      EXPECT_THAT(error_of(without(llama(), key)), HasSubstr(key));
    }
  }
  EXPECT_THAT(error_of(with(llama(), "num_key_value_heads", 3)), HasSubstr("divide"));
  for (const json& value : {json(0), json(-1e-5), json(2), json("small")}) {
    EXPECT_THAT(error_of(with(llama(), "rms_norm_eps", value)), HasSubstr("rms_norm_eps"));
    if (value != 2) {
      EXPECT_THAT(error_of(with(llama(), "rope_theta", value)), HasSubstr("rope_theta"));
    }
  }
  EXPECT_THAT(error_of(with(llama(), "attention_dropout", -0.1)), HasSubstr("attention_dropout"));
  EXPECT_THAT(error_of(with(llama(), "tie_word_embeddings", "no")), HasSubstr("true or false"));
}

TEST(ModelConfig, RefusesTextThatIsNoObject) {
  for (const char* text :
       {"", "{", "[]", "3", R"({"model_type": NaN})", R"({"rope_theta": 1e999})"}) {
    EXPECT_THROW(parse_model_config(text, "m/config.json"), InputError) << text;
  }
}

TEST(ModelConfig, WrittenTextReadsBackTheSame) {
  json rope = {{"rope_type", "llama3"},
               {"factor", 8.0},
               {"low_freq_factor", 1.0},
               {"high_freq_factor", 4.0},
               {"original_max_position_embeddings", 256},
               {"rope_theta", 500000.0}};
  const std::vector<json> documents = {
      with(with(with(llama(), "rope_parameters", rope), "mlp_bias", true), "attention_bias", true),
      with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2.5}}),
      with(with(of_family("mistral"), "sliding_window", 99), "head_dim", 24),
      with(of_family("mistral"), "sliding_window", nullptr),
      with(of_family("qwen2"), "tie_word_embeddings", true),
      with(with(with(of_family("qwen3"), "attention_bias", true), "use_sliding_window", true),
           "max_window_layers", 0)};
  for (const json& document : documents) {
    const ModelConfig config = parse(document);
    const std::string text = to_config_json(config, DType::bf16);
    const ModelConfig again = parse_model_config(text, "again");
    EXPECT_EQ(to_config_json(again, DType::bf16), text);
    EXPECT_EQ(again.sliding_window, config.sliding_window);
    EXPECT_EQ(again.rope_scaling.kind, config.rope_scaling.kind);
    EXPECT_EQ(again.rope_scaling.original_max_positions,
              config.rope_scaling.original_max_positions);
    EXPECT_EQ(again.rope_theta, config.rope_theta);
    EXPECT_EQ(again.head_dim, config.head_dim);
    EXPECT_EQ(parameter_count(again), parameter_count(config));
    EXPECT_EQ(json::parse(text)["model_type"], document["model_type"]);
    EXPECT_EQ(json::parse(text)["torch_dtype"], "bfloat16");
  }
}

TEST(ModelConfig, SequenceLength) {
  ModelConfig config = parse(llama());
  EXPECT_NO_THROW(check_sequence_length(config, 512));
  EXPECT_THROW(check_sequence_length(config, 513), InputError);
  EXPECT_THROW(check_sequence_length(config, 0), InputError);
  config.sliding_window = 100;
  EXPECT_NO_THROW(check_sequence_length(config, 512)) << "a window bounds no sequence";
}

TEST(ModuleSpecs, OrderNamesAndShapes) {
  const auto modules = module_specs(parse(llama()));
  ASSERT_EQ(modules.size(), 5U);
  EXPECT_EQ(modules[0].name, "embed");
  EXPECT_EQ(modules[0].parameters[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(modules[1].name, "block.0");
  EXPECT_EQ(modules[2].name, "block.1");
  EXPECT_EQ(modules[3].name, "norm");
  EXPECT_EQ(modules[3].parameters[0].name, "model.norm.weight");
  EXPECT_EQ(modules[4].name, "head");
  EXPECT_EQ(modules[4].parameters[0].name, "lm_head.weight");
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : modules[2].parameters) {
    names.push_back(parameter.name);
  }
  const std::string layer = "model.layers.1.";
  EXPECT_THAT(names, testing::ElementsAre(
                         layer + "input_layernorm.weight", layer + "self_attn.q_proj.weight",
                         layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight",
                         layer + "self_attn.o_proj.weight",
                         layer + "post_attention_layernorm.weight", layer + "mlp.gate_proj.weight",
                         layer + "mlp.up_proj.weight", layer + "mlp.down_proj.weight"));
  EXPECT_EQ(modules[2].parameters[2].shape, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(modules[2].parameters[8].shape, (std::vector<int64_t>{64, 96}));
}

TEST(ModuleSpecs, TiedModelsHaveNoHead) {
  const auto modules = module_specs(parse(with(llama(), "tie_word_embeddings", true)));
  EXPECT_EQ(modules.back().name, "norm");
}

TEST(ModuleSpecs, ParametersAreAlignedAndDoNotOverlap) {
  json document = with(with(of_family("qwen3"), "attention_bias", true), "intermediate_size", 90);
  document["hidden_size"] = 72;
  document["vocab_size"] = 1001;
  for (const ModuleSpec& module : module_specs(parse(document))) {
    int64_t end = 0;
    for (const ParameterSpec& parameter : module.parameters) {
      EXPECT_EQ(parameter.offset.count() % 64, 0) << parameter.name;
      EXPECT_GE(parameter.offset.count(), end) << parameter.name;
      EXPECT_LT(parameter.offset.count() - end, 64) << parameter.name;
      end = (parameter.offset + parameter.count).count();
    }
    EXPECT_EQ(module.count.count(), (end + 63) / 64 * 64);
  }
}

TEST(ModuleSpecs, TilesCutTheMatricesOverTheVocabulary) {
  json document = llama();
  document["vocab_size"] = 1001;
  document["hidden_size"] = 80;
  const ModelConfig config = parse(document);
  const auto whole = module_specs(config);
  const auto tiled = tiled_module_specs(config, 400);
  std::vector<std::string> names;
  for (const ModuleSpec& module : tiled) {
    names.push_back(module.name);
  }
  EXPECT_THAT(names, testing::ElementsAre("embed.0", "embed.1", "embed.2", "block.0", "block.1",
                                          "norm", "head.0", "head.1", "head.2"));
  for (const size_t first : {size_t{0}, size_t{6}}) {
    const ParameterSpec& parameter = whole[first == 0 ? 0 : whole.size() - 1].parameters[0];
    int64_t row = 0;
    for (size_t tile = 0; tile < 3; ++tile) {
      const ModuleSpec& module = tiled[first + tile];
      const int64_t rows = tile < 2 ? 400 : 201;
      ASSERT_EQ(module.parameters.size(), 1U);
      EXPECT_EQ(module.parameters[0].name, parameter.name);
      EXPECT_EQ(module.parameters[0].shape, parameter.shape);
      EXPECT_EQ(module.parameters[0].first.count(), row * 80);
      EXPECT_EQ(module.parameters[0].count.count(), rows * 80);
      EXPECT_EQ(module.count.count(), (rows * 80 + 63) / 64 * 64);
      EXPECT_EQ(vocabulary_range(module).first, row);
      EXPECT_EQ(vocabulary_range(module).count, rows);
      row += rows;
    }
    EXPECT_EQ(row, 1001);
  }
  for (const int64_t rows : {1001, 5000}) {
    const auto one = tiled_module_specs(config, rows);
    ASSERT_EQ(one.size(), whole.size());
    EXPECT_EQ(one.front().name, "embed");
    EXPECT_EQ(one.back().name, "head");
    EXPECT_EQ(one.back().count, whole.back().count);
  }
  document["tie_word_embeddings"] = true;
  EXPECT_EQ(tiled_module_specs(parse(document), 400).back().name, "norm");
}

// Published sizes of well-known models.
TEST(ModuleSpecs, ParameterCountsOfKnownModels) {
  ModelConfig llama8b;  // Llama 3.1 8B
  llama8b.vocab_size = 128256;
  llama8b.hidden_size = 4096;
  llama8b.intermediate_size = 14336;
  llama8b.layers = 32;
  llama8b.heads = 32;
  llama8b.kv_heads = 8;
  llama8b.head_dim = 128;
  EXPECT_EQ(parameter_count(llama8b).count(), 8030261248);
  ModelConfig qwen;  // Qwen2.5 0.5B
  qwen.vocab_size = 151936;
  qwen.hidden_size = 896;
  qwen.intermediate_size = 4864;
  qwen.layers = 24;
  qwen.heads = 14;
  qwen.kv_heads = 2;
  qwen.head_dim = 64;
  qwen.attention_bias = true;
  qwen.tie_word_embeddings = true;
  EXPECT_EQ(parameter_count(qwen).count(), 494032768);
}

}  // namespace
}  // namespace headrace::model
