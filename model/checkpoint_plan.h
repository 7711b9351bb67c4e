#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace headrace::model {

/// One weight file of a checkpoint to be written.
struct ShardPlan {
  std::string file_name;
  std::vector<PlannedTensor> tensors;  ///< in the order of the data
  Bytes data_size;
};

/// Distributes the parameters over files in order, as Hugging Face does: a new file begins where
/// the next tensor would carry the data beyond `max_shard_size`. One file is called
/// model.safetensors, several model-00001-of-0000N.safetensors.
std::vector<ShardPlan> plan_shards(std::span<const ModuleSpec> modules, DType dtype,
                                   Bytes max_shard_size);

/// Text of model.safetensors.index.json.
std::string make_index_json(std::span<const ShardPlan> shards);

/// Weight files that the folder's index names, if there is a readable one: the shards of the model
/// that is about to be replaced.
std::vector<std::string> shards_in_index(const std::string& index_path);

}  // namespace headrace::model
