#pragma once

#include <optional>
#include <string>

#include "base/command_line.h"
#include "engine/config/resolve.h"
#include "model/model_config.h"

namespace headrace::tools {

/// The flags that settle, with a ds_config.json, what a run does; every command that runs or plans
/// one has them.
class SettingOptions {
 public:
  /// --config and the flags that replace its values. This object must outlive the parsing.
  void add_to(Command& command);

  /// The settings for the model; what the command line replaced and what each "auto" became is
  /// logged. Throws InputError.
  /// `names_gpu`: for a machine with a GPU, whatever this one has.
  engine::Settings resolve(const model::ModelConfig& model, int64_t total_steps,
                           bool names_gpu = false);

  const std::string& config() const { return config_; }

 private:
  std::string config_;
  std::string device_memory_;
  std::string host_memory_;
  std::string nvme_budget_;
  engine::ResolveContext context_;
};

}  // namespace headrace::tools
