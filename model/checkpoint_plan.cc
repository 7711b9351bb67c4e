#include "model/checkpoint_plan.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "model/checkpoint_file.h"
#include "model/checkpoint_json.h"

namespace headrace::model {

std::vector<ShardPlan> plan_shards(std::span<const ModuleSpec> modules, DType dtype,
                                   Bytes max_shard_size) {
  HR_CHECK(max_shard_size.count() > 0, "shards of {} bytes", max_shard_size.count());
  std::vector<ShardPlan> shards(1);
  for (const ModuleSpec& module : modules) {
    for (const ParameterSpec& parameter : module.parameters) {
      const Bytes size = bytes_for(parameter.count, dtype);
      if (shards.back().data_size.count() > 0 && shards.back().data_size + size > max_shard_size) {
        shards.emplace_back();
      }
      shards.back().tensors.push_back({parameter.name, dtype, parameter.shape, size});
      shards.back().data_size += size;
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file_name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

std::string make_index_json(std::span<const ShardPlan> shards) {
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  Bytes total;
  for (const ShardPlan& shard : shards) {
    total += shard.data_size;
    for (const PlannedTensor& tensor : shard.tensors) {
      weight_map[tensor.name] = shard.file_name;
    }
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total.count();
  index["weight_map"] = std::move(weight_map);
  return index.dump(2) + "\n";
}

std::vector<std::string> shards_in_index(const std::string& index_path) {
  std::set<std::string> names;
  if (std::error_code error; !std::filesystem::exists(index_path, error)) {
    return {};
  }
  try {
    const auto index =
        parse_json_object<nlohmann::json>(read_text_file(index_path, 64 * kMiB), index_path);
    for (const auto& [tensor, file] : index.at("weight_map").items()) {
      const auto& name = file.get_ref<const std::string&>();
      if (name.find('/') == std::string::npos && name.ends_with(".safetensors")) {
        names.insert(name);
      }
    }
  } catch (const InputError& error) {
    log_warning("the index of the replaced model is unreadable, its shards stay: {}", error.what());
  } catch (const nlohmann::json::exception& error) {
    log_warning("{}: not an index of shards, nothing is removed by it: {}", index_path,
                error.what());
  }
  return {names.begin(), names.end()};
}

}  // namespace headrace::model
