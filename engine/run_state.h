#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "engine/config/settings.h"
#include "engine/trainer.h"
#include "model/model_config.h"
#include "proto/run_state.pb.h"

namespace headrace::engine {

/// Every setting that decides the numbers of a run, as text, by the name that --allow-change takes.
/// What only decides where bytes lie or how fast they move (budgets, paths, policies, shard sizes)
/// is left out.
std::map<std::string, std::string> numeric_settings(const TrainJob& job, const Settings& settings,
                                                    const model::ModelConfig& model);

/// Throws InputError that names every setting in which `present` differs from `stored`, unless it
/// is in `allowed`; also where `allowed` has a name that no setting has.
void check_settings(const std::map<std::string, std::string>& stored,
                    const std::map<std::string, std::string>& present,
                    const std::set<std::string>& allowed, const std::string& run);

/// "adam", "adagrad", "lion", "sgd".
std::string optimizer_name(OptimizerKind kind);

/// Its layout is sound (check_layout). InputError, naming `run`, where the bytes are none.
proto::RunState parse_run_state(const std::map<std::string, std::string>& run_state,
                                const std::string& run);

}  // namespace headrace::engine
