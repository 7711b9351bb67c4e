#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/config/settings.h"
#include "proto/ds_config.pb.h"
#include "proto/problems.h"

namespace headrace::engine {

/// What is known beside the file. Values from the command line replace those of the file, with a
/// note; they and the facts also fill what the file leaves "auto".
struct ResolveContext {
  // Facts.
  int64_t ranks = 1;
  bool has_gpu = false;
  std::string no_gpu_reason;           ///< where it is known
  std::optional<int64_t> hidden_size;  ///< of the model
  std::optional<int64_t> vocab_size;   ///< of the model
  std::vector<int64_t> end_tokens;     ///< eos_token_id of the model
  std::optional<int64_t> total_steps;  ///< of the run

  // Command line.
  std::optional<int64_t> train_batch;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> accumulation_steps;
  std::optional<DType> dtype;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<double> gradient_clipping;
  std::optional<int64_t> warmup_steps;
  std::optional<Bytes> device_memory;
  std::optional<Bytes> host_memory;
  std::optional<Bytes> nvme_budget;
  std::vector<std::string> nvme_paths;
  std::optional<PolicyKind> policy;
  std::optional<IoBackendChoice> io_backend;
  std::optional<uint64_t> seed;
};

struct Resolution {
  Settings settings;
  /// What each "auto" became, what the command line replaced, what deserves attention.
  std::vector<proto::Note> notes;
};

/// Puts file and context together, checks what concerns several keys, and fills every "auto".
/// Throws one InputError with all problems; `source` is the file's name in it.
Resolution resolve(const proto::DsConfig& config, const ResolveContext& context,
                   const std::string& source = "configuration");

}  // namespace headrace::engine
