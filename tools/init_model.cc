#include <fmt/format.h>

#include <memory>

#include "base/dtype.h"
#include "base/error.h"
#include "model/checkpoint.h"
#include "model/presets.h"
#include "tools/command.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::string preset;
  std::string output;
  std::string dtype = "f32";
  uint64_t seed = 0;
};

std::string joined_presets() {
  std::string text;
  for (const std::string& name : model::preset_names()) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

void run(const Arguments& arguments) {
  const model::ModelConfig config = model::preset_config(arguments.preset);
  const DType dtype = arguments.dtype == "bf16" ? DType::bf16 : DType::f32;
  model::init_model(config, dtype, arguments.seed, arguments.output);
  fmt::print("{}: {} parameters ({} layers, hidden size {}, vocabulary {}), random weights\n",
             arguments.output,
             format_count(static_cast<double>(model::parameter_count(config).count())),
             config.layers, config.hidden_size, config.vocab_size);
}

}  // namespace

void add_init_model(Command& app) {
  auto arguments = std::make_shared<Arguments>();
  Command* command =
      app.add_subcommand("init-model", "Write a model with random weights, in Hugging Face layout");
  command->add_option("--preset", arguments->preset, "Shape: " + joined_presets())->required();
  command->add_option("--output", arguments->output, "Folder to write")->required();
  command->add_option("--dtype", arguments->dtype, "Of the stored weights")
      ->check_one_of({"f32", "bf16"})
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "The weights depend on it alone")
      ->capture_default_str();
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
