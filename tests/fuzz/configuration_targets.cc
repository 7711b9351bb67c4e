// Text that people write: configurations.
#include "fuzz/targets.h"
#include "model/model_config.h"
#include "proto/config_parser.h"

namespace headrace::fuzz {

void read_ds_config(std::string_view input) {
  proto::parse_config(input, "input");
}

void read_model_config(std::string_view input) {
  const model::ModelConfig config = model::parse_model_config(std::string(input), "input");
  model::module_specs(config);
}

}  // namespace headrace::fuzz
