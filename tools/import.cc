#include "engine/import.h"

#include <fmt/format.h>

#include <memory>

#include "tools/command.h"
#include "tools/progress.h"

namespace headrace::tools {

namespace {

void run(const engine::ImportOptions& options) {
  std::unique_ptr<Progress> progress;
  const auto directories = engine::import_run(options, [&](int64_t done, int64_t total) {
    if (progress == nullptr) {
      progress = std::make_unique<Progress>("importing", total);
    }
    progress->update(done);
  });
  progress.reset();
  fmt::print("the run is in {}; headrace train --output {} goes on with it\n",
             fmt::join(directories, ", "), options.output_folder);
}

}  // namespace

void add_import(Command& app) {
  auto options = std::make_shared<engine::ImportOptions>();
  Command* command = app.add_subcommand(
      "import", "Make a run of a Hugging Face folder or a universal checkpoint of DeepSpeed");
  command->add_option("--input", options->input_folder, "The folder to read")->required();
  command
      ->add_option("--output", options->output_folder,
                   "Output folder of the training that goes on with it")
      ->required();
  command->add_option(
      "--model", options->model_folder,
      "Hugging Face folder with config.json and tokenizer, where the input is none");
  command->add_option("--nvme-path", options->paths,
                      "Folders for the run directories; without it the output folder");
  command
      ->add_option("--next-sequence", options->next_sequence,
                   "Sequences of the data's order that were trained on already")
      ->check_not_negative();
  command->add_option("--run-id", options->run_id, "Name of the run");
  command->callback([options] { run(*options); });
}

}  // namespace headrace::tools
