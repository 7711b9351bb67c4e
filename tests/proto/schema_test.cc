#include "proto/schema.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "proto/config_parser.h"
#include "proto/ds_config.pb.h"

namespace headrace::proto {
namespace {

using google::protobuf::FieldDescriptor;

std::map<std::string, const FieldDescriptor*> all_keys() {
  std::map<std::string, const FieldDescriptor*> keys;
  for_each_key(*DsConfig::descriptor(), "",
               [&](const std::string& path, const auto& field) { keys[path] = &field; });
  return keys;
}

TEST(Schema, EveryKeyIsDescribed) {
  const auto keys = all_keys();
  EXPECT_GT(keys.size(), 200U);
  for (const auto& [path, field] : keys) {
    const KeyRule& rule = rule_of(*field);
    EXPECT_FALSE(rule.doc().empty()) << path;
    EXPECT_EQ(rule.effect() != HONORED, !rule.reason().empty()) << path;
    EXPECT_FALSE(rule.has_min() && rule.has_above()) << path;
    EXPECT_FALSE(rule.has_max() && rule.has_below()) << path;
  }
}

TEST(Schema, KeysAreFoundByTheirPaths) {
  for (const auto& [path, field] : all_keys()) {
    EXPECT_EQ(key_at(*DsConfig::descriptor(), path), field) << path;
  }
  for (const char* path : {"", "automatic", "fp16.x", "fp16.enabled.x", ".fp16", "fp16."}) {
    EXPECT_EQ(key_at(*DsConfig::descriptor(), path), nullptr) << path;
  }
}

TEST(Schema, FieldsThatAreNoKeysCannotBeSetByAFile) {
  EXPECT_FALSE(find_key(*DsConfig::descriptor(), "automatic"));
  EXPECT_TRUE(find_key(*DsConfig::descriptor(), "aio"));
}

TEST(Schema, NamesWithinABlockAreUnique) {
  std::set<const google::protobuf::Descriptor*> blocks = {DsConfig::descriptor()};
  for (const auto& [path, field] : all_keys()) {
    if (field->message_type() != nullptr) {
      blocks.insert(field->message_type());
    }
  }
  for (const auto* block : blocks) {
    std::set<std::string> names;
    for (const std::string& name : key_names(*block, /*all_names=*/true)) {
      EXPECT_TRUE(names.insert(name).second) << block->name() << "." << name;
    }
  }
}

TEST(Schema, DefaultsAreInRange) {
  for (const auto& [path, field] : all_keys()) {
    const KeyRule& rule = rule_of(*field);
    std::vector<double> values(rule.default_list().begin(), rule.default_list().end());
    if (field->has_default_value()) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
        values.push_back(static_cast<double>(field->default_value_int64()));
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        values.push_back(field->default_value_double());
      }
    }
    for (const double value : values) {
      EXPECT_TRUE(!rule.has_min() || value >= rule.min()) << path;
      EXPECT_TRUE(!rule.has_above() || value > rule.above()) << path;
      EXPECT_TRUE(!rule.has_max() || value <= rule.max()) << path;
      EXPECT_TRUE(!rule.has_below() || value < rule.below()) << path;
    }
  }
}

/// Old forms must themselves be valid configurations.
TEST(Schema, ReplacementsOfOldFormsAreBlocks) {
  int found = 0;
  for (const auto& [path, field] : all_keys()) {
    const KeyRule& rule = rule_of(*field);
    for (const std::string& text : {rule.switch_for(), rule.when_true()}) {
      if (!text.empty()) {
        EXPECT_TRUE(nlohmann::json::parse(text).is_object()) << path;
        ++found;
      }
    }
  }
  EXPECT_EQ(found, 3);
}

/// The parameters' conditions name types that exist.
TEST(Schema, OnlyForNamesExistingTypes) {
  for (const auto& [path, field] : all_keys()) {
    for (const std::string& type : rule_of(*field).only_for()) {
      const bool exists = find_value(*Optimizer::Type_descriptor(), type) != nullptr ||
                          find_value(*Scheduler::Type_descriptor(), type) != nullptr;
      EXPECT_TRUE(exists) << path << ": " << type;
    }
  }
}

/// Defaults of DeepSpeed 0.19.6, from its documentation and behaviour.
TEST(Schema, DefaultsAreDeepSpeeds) {
  const std::map<std::string, std::string> expected = {
      {"gradient_clipping", "1"},
      {"prescale_gradients", "false"},
      {"gradient_predivide_factor", "1"},
      {"managed_gradient_accumulation", "true"},
      {"steps_per_print", "none"},
      {"wall_clock_breakdown", "false"},
      {"train_batch_size", "none"},
      {"train_micro_batch_size_per_gpu", "none"},
      {"gradient_accumulation_steps", "none"},
      {"zero_force_ds_cpu_optimizer", "true"},
      {"seq_parallel_communication_data_type", "\"fp32\""},
      {"zero_optimization.stage", "0"},
      {"zero_optimization.contiguous_gradients", "true"},
      {"zero_optimization.reduce_scatter", "true"},
      {"zero_optimization.reduce_bucket_size", "500000000"},
      {"zero_optimization.allgather_bucket_size", "500000000"},
      {"zero_optimization.overlap_comm", "none"},
      {"zero_optimization.load_from_fp32_weights", "true"},
      {"zero_optimization.elastic_checkpoint", "false"},
      {"zero_optimization.sub_group_size", "1000000000"},
      {"zero_optimization.stage3_prefetch_bucket_size", "50000000"},
      {"zero_optimization.stage3_param_persistence_threshold", "100000"},
      {"zero_optimization.stage3_model_persistence_threshold", "9223372036854775807"},
      {"zero_optimization.stage3_max_live_parameters", "1000000000"},
      {"zero_optimization.stage3_max_reuse_distance", "1000000000"},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save", "false"},
      {"zero_optimization.stage3_module_granularity_threshold", "0"},
      {"zero_optimization.ignore_unused_parameters", "true"},
      {"zero_optimization.round_robin_gradients", "false"},
      {"zero_optimization.zero_hpz_partition_size", "1"},
      {"zero_optimization.mics_shard_size", "-1"},
      {"zero_optimization.memory_efficient_linear", "true"},
      {"zero_optimization.override_module_apply", "true"},
      {"zero_optimization.zeropp_loco_param.err_beta", "0.8"},
      {"zero_optimization.zeropp_loco_param.reset_T", "1024"},
      {"zero_optimization.offload_param.device", "none"},
      {"zero_optimization.offload_param.nvme_path", "none"},
      {"zero_optimization.offload_param.buffer_count", "5"},
      {"zero_optimization.offload_param.buffer_size", "100000000"},
      {"zero_optimization.offload_param.max_in_cpu", "1000000000"},
      {"zero_optimization.offload_param.pin_memory", "true"},
      {"zero_optimization.offload_optimizer.device", "none"},
      {"zero_optimization.offload_optimizer.buffer_count", "4"},
      {"zero_optimization.offload_optimizer.pin_memory", "true"},
      {"zero_optimization.offload_optimizer.pipeline_read", "false"},
      {"zero_optimization.offload_optimizer.pipeline_write", "false"},
      {"zero_optimization.offload_optimizer.fast_init", "false"},
      {"zero_optimization.offload_optimizer.ratio", "none"},  // 1 in DeepSpeed; here the plan's
      {"zero_optimization.offload_optimizer.super_offload", "false"},
      {"zero_optimization.offload_optimizer.cpuadam_cores_perc", "0.8"},
      {"aio.block_size", "1048576"},
      {"aio.queue_depth", "16"},
      {"aio.intra_op_parallelism", "1"},
      {"aio.single_submit", "false"},
      {"aio.overlap_events", "true"},
      {"aio.use_gds", "false"},
      {"fp16.enabled", "false"},
      {"fp16.auto_cast", "false"},
      {"fp16.loss_scale", "0"},
      {"fp16.initial_scale_power", "16"},
      {"fp16.loss_scale_window", "1000"},
      {"fp16.hysteresis", "2"},
      {"fp16.consecutive_hysteresis", "false"},
      {"fp16.min_loss_scale", "1"},
      {"bf16.enabled", "false"},
      {"bf16.immediate_grad_update", "false"},
      {"bf16.check_grad_overflow", "true"},
      {"optimizer.params.lr", "0.001"},
      {"optimizer.params.betas", "[0.9, 0.999]"},
      {"optimizer.params.eps", "1e-08"},
      {"optimizer.params.weight_decay", "0"},
      {"optimizer.params.bias_correction", "true"},
      {"optimizer.params.adam_w_mode", "true"},
      {"optimizer.params.torch_adam", "false"},
      {"scheduler.params.warmup_min_lr", "0"},
      {"scheduler.params.warmup_max_lr", "none"},
      {"scheduler.params.warmup_num_steps", "1000"},
      {"scheduler.params.warmup_type", "log"},
      {"scheduler.params.total_num_steps", "none"},
      {"scheduler.params.warmup_min_ratio", "0"},
      {"scheduler.params.cos_min_ratio", "0.0001"},
      {"scheduler.params.cycle_first_step_size", "2000"},
      {"scheduler.params.lr_range_test_step_size", "2000"},
      {"activation_checkpointing.cpu_checkpointing", "false"},
      {"activation_checkpointing.number_checkpoints", "none"},
      {"checkpoint.tag_validation", "Warn"},
      {"checkpoint.checkpoint_serialization", "true"},
      {"checkpoint.writer.io_buffer_size", "67108864"},
      {"checkpoint.writer.io_buffer_double", "true"},
  };
  const auto keys = all_keys();
  for (const auto& [path, text] : expected) {
    ASSERT_TRUE(keys.contains(path)) << path;
    EXPECT_EQ(default_text(*keys.at(path)), text) << path;
  }
}

/// A file that writes every scalar default explicitly means the same as an empty one.
TEST(Schema, EveryDefaultIsAccepted) {
  for (const auto& [path, field] : all_keys()) {
    const std::string value = default_text(*field);
    if (value == "none" || path.starts_with("optimizer") || path.starts_with("scheduler") ||
        path.find("zeropp_loco") != std::string::npos) {
      continue;  // blocks that need a type, or are not supported as a whole
    }
    std::string text = field->enum_type() != nullptr ? "\"" + value + "\"" : value;
    std::string rest = path;
    for (size_t dot = rest.rfind('.'); dot != std::string::npos; dot = rest.rfind('.')) {
      text = "{\"" + rest.substr(dot + 1) + "\": " + text + "}";
      rest = rest.substr(0, dot);
    }
    text = "{\"" + rest + "\": " + text + "}";
    EXPECT_NO_THROW(parse_config(text, path)) << text;
  }
}

TEST(Schema, RangesRead) {
  KeyRule rule;
  EXPECT_EQ(range_text(rule), "");
  rule.set_min(1);
  EXPECT_EQ(range_text(rule), "at least 1");
  rule.set_max(3);
  EXPECT_EQ(range_text(rule), "from 1 to 3");
  rule.clear_max();
  rule.set_below(2);
  EXPECT_EQ(range_text(rule), "at least 1, below 2");
  rule.clear_min();
  rule.set_above(0.5);
  EXPECT_EQ(range_text(rule), "above 0.5, below 2");
}

}  // namespace
}  // namespace headrace::proto
