#pragma once

#include <string>

#include "engine/engine.h"
#include "model/model_config.h"
#include "scheduler/saved_trace.h"

namespace headrace::engine {

/// Which trace of the memory plan is recorded.
enum class RecordedStep : uint8_t {
  steady,       ///< what most steps run: speculative where the plan has it, else training
  training,     ///< updates after the norm, or during backward where they do not need it
  speculative,  ///< updates during backward, before the norm is known
  redo,         ///< the updates of a speculative step once more
  evaluation,
};

/// Plans the run as Engine does, and compiles the trace as it would: from what the load of the
/// weights leaves in memory, then `rounds` times (at least once), each from what the one before
/// left. A redo follows a speculative step. The first and the last round are kept. Durations and
/// rates are those from before the first step. Allocates nothing of the model's. Throws InputError
/// where the plan has no such trace, else as Engine.
scheduler::SavedTrace record_trace(const model::ModelConfig& config, const EngineOptions& options,
                                   RecordedStep step, int rounds);

/// A trace file. InputError, IoError naming the path.
void save_trace(const scheduler::SavedTrace& trace, const std::string& path);
scheduler::SavedTrace load_trace(const std::string& path);

}  // namespace headrace::engine
