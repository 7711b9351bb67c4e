#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/units.h"
#include "tiers/extent_store.h"

namespace headrace::engine {

struct ExportOptions {
  std::string output_folder;
  std::optional<uint64_t> generation;  ///< empty: the committed one
  std::optional<DType> dtype;          ///< empty: that of the training; f32: the master weights
  Bytes max_shard_size{5'000'000'000};
  /// Folder with tokenizer and generation files to copy along; empty: the one that the run was
  /// trained from, where that is still there.
  std::string model_folder;
};

/// Elements done and in total.
using ExportProgress = std::function<void(int64_t done, int64_t total)>;

/// Writes a generation of a run as a Hugging Face folder, under temporary names until it is whole.
/// Takes as much memory as a StateReader, whatever the model's size. In the dtype of the training
/// the weights are those that compute uses, else the rounded master. Errors: InputError, IoError.
void export_hugging_face(tiers::ExtentStore& store, const ExportOptions& options,
                         const ExportProgress& progress);

/// Writes a generation as a universal checkpoint of DeepSpeed, complete for its load_checkpoint()
/// with any ZeRO stage: <output>/global_step<N>/ with zero/<parameter>/{fp32,exp_avg,exp_avg_sq,
/// step}.pt, zero/optimizer_state.pt and the files of model states (counters, position of the
/// learning rate schedule), and the file latest_universal last. For adam. Uses output_folder and
/// generation of the options only. Errors: InputError, IoError.
void export_universal(tiers::ExtentStore& store, const ExportOptions& options,
                      const ExportProgress& progress);

}  // namespace headrace::engine
