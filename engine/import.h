#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"

namespace headrace::engine {

struct ImportOptions {
  /// A Hugging Face folder with the weights, or a folder of DeepSpeed's universal format: with
  /// zero/, or with latest_universal that names one.
  std::string input_folder;
  std::string model_folder;        ///< config.json and tokenizer; empty: input_folder
  std::string output_folder;       ///< of the training that goes on with it: gets run.json
  std::vector<std::string> paths;  ///< for the run directories; empty: the output folder
  int64_t next_sequence = 0;       ///< where in the data's order the training goes on
  std::string run_id;              ///< empty: made from host, process and time
};

/// Elements done and in total.
using ImportProgress = std::function<void(int64_t done, int64_t total)>;

/// Makes a run whose only generation has the weights and Adam moments of the input; a Hugging Face
/// folder has no moments: they begin at zero. Training with the output folder goes on from it, with
/// any settings. Takes about 64 MiB of memory, whatever the model's size. Returns the run
/// directories. Errors: InputError, IoError, CapacityError.
std::vector<std::string> import_run(const ImportOptions& options, const ImportProgress& progress);

}  // namespace headrace::engine
