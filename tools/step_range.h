#pragma once

#include <string>

#include "engine/trainer.h"

namespace headrace::tools {

/// "4" or "3-5"; UsageError that names `option` where it is neither.
engine::StepRange parse_step_range(const std::string& option, const std::string& text);

}  // namespace headrace::tools
