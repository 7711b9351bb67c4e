#include "engine/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "engine/run_access.h"
#include "engine/shard_arrays.h"
#include "engine/state_reader.h"
#include "model/checkpoint.h"
#include "model/checkpoint_file.h"

namespace headrace::engine {

namespace {

/// Where tokenizer files come from; empty: nowhere.
std::string companion_folder(const ExportOptions& options, const proto::RunState& state) {
  if (!options.model_folder.empty()) {
    return options.model_folder;
  }
  if (std::filesystem::exists(state.model_folder() + "/config.json")) {
    return state.model_folder();
  }
  log_info(
      "{} is not there any more: config.json is made from what the run knows, and no "
      "tokenizer files are copied; name their folder with --model",
      state.model_folder().empty() ? "the model's folder" : state.model_folder());
  return "";
}

}  // namespace

void export_hugging_face(tiers::ExtentStore& store, const ExportOptions& options,
                         const ExportProgress& progress) {
  const proto::RunState state = run_state_of(store, options.generation);
  model::check_is_elsewhere(options.output_folder, state.model_folder());
  const model::ModelConfig config =
      model::parse_model_config(state.model_config_json(), store.directories().front());
  const std::vector<model::ModuleSpec> modules = model::module_specs(config);
  StateReader reader(store, options.generation, state.layout());
  const DType stored = dtype_from(state.layout().dtype());
  model::CheckpointWriter::Options writer_options;
  writer_options.dtype = options.dtype.value_or(stored);
  writer_options.max_shard_size = options.max_shard_size;
  writer_options.copy_from = companion_folder(options, state);
  const StateArray array =
      writer_options.dtype == stored ? StateArray::weights : StateArray::master;
  model::CheckpointWriter writer(options.output_folder, config, modules, writer_options);
  int64_t done = 0;
  int64_t total = 0;
  for (const model::ModuleSpec& module : modules) {
    total += module.count.count();
  }
  for (const model::ModuleSpec& module : modules) {
    writer.write_module(module, [&](Elements first, std::span<float> out) {
      for_parameter_ranges(
          module, first, Elements(static_cast<int64_t>(out.size())),
          [&](const model::ParameterSpec& parameter, int64_t from, int64_t at, int64_t count) {
            reader.read(parameter.name, array, Elements(from),
                        out.subspan(static_cast<size_t>(at), static_cast<size_t>(count)));
          },
          [&](int64_t at, int64_t count) { std::fill_n(out.begin() + at, count, 0.0F); });
    });
    done += module.count.count();
    progress(done, total);
  }
  writer.finish();
}

}  // namespace headrace::engine
