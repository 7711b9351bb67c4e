#include "engine/export.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "engine/run_access.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace headrace::tools {

namespace {

struct Arguments {
  std::string run;
  std::string max_shard_size;
  bool universal = false;
  engine::ExportOptions options;
};

void run(Arguments arguments) {
  if (!arguments.max_shard_size.empty()) {
    arguments.options.max_shard_size = parse_bytes(arguments.max_shard_size, "--max-shard-size");
  }
  const auto store = engine::open_run(arguments.run);
  watch_signals();
  {
    std::unique_ptr<Progress> progress;
    const auto write = arguments.universal ? engine::export_universal : engine::export_hugging_face;
    write(*store, arguments.options, [&](int64_t done, int64_t total) {
      if (progress == nullptr) {
        progress = std::make_unique<Progress>("exporting", total);
      }
      progress->update(done);
      if (stop_requested()) {
        throw InterruptedError("the export was stopped; what it had written is removed");
      }
    });
  }
  fmt::print("generation {} is in {}\n", arguments.options.generation.value_or(store->generation()),
             arguments.options.output_folder);
}

}  // namespace

void add_export(Command& app) {
  static const std::map<std::string, DType> dtypes{
      {"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}};
  auto arguments = std::make_shared<Arguments>();
  engine::ExportOptions& options = arguments->options;
  Command* command = app.add_subcommand("export", "Write a generation of a run as a model folder");
  command->add_option("--run", arguments->run, "Run directory, or output folder of the training")
      ->required();
  command->add_option("--output", options.output_folder, "Folder for the model")->required();
  command->add_option("--generation", options.generation,
                      "A snapshot; without it the current generation");
  command
      ->add_choice("--dtype", options.dtype, dtypes,
                   "bf16, fp16, or fp32 for the master weights; without it that of the training")
      ->option_text("bf16|fp16|fp32");
  static const std::map<std::string, bool> formats{{"huggingface", false},
                                                   {"deepspeed-universal", true}};
  command
      ->add_choice(
          "--format", arguments->universal, formats,
          "huggingface (safetensors), or deepspeed-universal: fp32, exp_avg and exp_avg_sq "
          "of each parameter")
      ->option_text("huggingface|deepspeed-universal");
  command->add_option("--max-shard-size", arguments->max_shard_size,
                      "Largest safetensors file, such as 5GB");
  command->add_option("--model", options.model_folder,
                      "Folder whose tokenizer files are copied along; without it the one that was "
                      "trained");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace headrace::tools
