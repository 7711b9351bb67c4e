#pragma once

#include <functional>
#include <vector>

#include "device/device.h"
#include "engine/device_updates.h"
#include "engine/executor.h"
#include "engine/gradient_norm.h"
#include "engine/model_layout.h"
#include "engine/optimizer/update.h"
#include "engine/step_trace.h"
#include "model/checkpoint.h"
#include "model/network.h"
#include "model/token_data.h"

namespace headrace::engine {

/// Fixed regions of the compute tier that operations share; the compute stream's order keeps their
/// users apart.
struct ComputeScratch {
  std::byte* tokens = nullptr;  ///< ids then labels, int32 each
  double* loss_sum = nullptr;
  int32_t* not_finite = nullptr;  ///< of the optimizer on the device
  device::Workspace workspace;
};

/// Numbers of one optimizer step that the bodies read and write.
struct StepNumbers {
  // Set before the step.
  UpdateOptions optimizer;  ///< gradient_scale is set by the step
  double loss_scale = 1;
  double gradient_clipping = 0;  ///< global norm; 0: off
  bool check_finite = true;
  int64_t micro_batches = 1;
  /// The loss is the mean over all counted labels of the step, as Hugging Face's with
  /// num_items_in_batch; else the mean of the micro-batches' means, which is the same where all
  /// have as many.
  bool mean_over_step = false;

  // Known after finish_norm.
  double gradient_norm = 0;  ///< unscaled, before clipping
  bool skipped = false;      ///< gradients were not finite: the update leaves every value as it was
  bool clipped = false;      ///< the norm was above gradient_clipping
  // Known after the step.
  bool host_updates_finite = true;    ///< all values that the CPU has updated
  bool device_updates_finite = true;  ///< and the device
  bool weights_finite() const { return host_updates_finite && device_updates_finite; }
  std::vector<double> losses;  ///< per micro-batch; their mean is the step's loss
};

/// What the operations of the native model do. Called by the executor: compute operations on the
/// driver thread (they post to the stream), CPU operations on its worker. Not owned by it: network,
/// layout, kernels, stream.
class StepBodies {
 public:
  StepBodies(const ModelLayout& layout, model::Network& network, device::Kernels& kernels,
             device::Stream& stream, const ComputeScratch& scratch);

  /// Body of a training or evaluation trace over these batches (one per micro-batch), which must
  /// stay valid until the run has ended.
  OperationBody training(const StepTrace& trace, const std::vector<model::TokenBatch>& batches,
                         StepNumbers& numbers);
  /// Body of a redo trace: with the numbers that the speculative training trace has left.
  OperationBody redo(const StepTrace& trace, StepNumbers& numbers);
  OperationBody evaluation(const StepTrace& trace, const model::TokenBatch& batch,
                           double& loss_sum);
  /// `progress` is called with the elements done so far.
  OperationBody load(const StepTrace& trace, const model::CheckpointReader& reader,
                     const std::function<void(Elements)>& progress);
  OperationBody save(const StepTrace& trace, model::CheckpointWriter& writer,
                     const std::function<void(Elements)>& progress);

 private:
  void upload_tokens(const model::TokenBatch& batch);
  void set_documents(const model::TokenBatch& batch);
  void compute(const StepOperation& step, UseBytes uses, const model::TokenBatch& batch,
               float gradient_scale, double* loss_sum);
  void compute_tile(const StepOperation& step, UseBytes uses);
  model::Network::BlockTile block_tile(const StepOperation& step, UseBytes uses) const;
  model::VocabularyRange rows_of(const StepOperation& step) const;
  model::Network::HeadTile head_tile(const StepOperation& step, UseBytes uses,
                                     const int32_t* labels) const;
  bool gives_loss(const StepOperation& step) const;
  void accumulate(const StepOperation& step, UseBytes uses);
  void clear_gaps(const StepOperation& step, float* gradient) const;
  void join_sums(const StepOperation& step, UseBytes uses);
  void round_sum(const StepOperation& step, UseBytes uses);
  void measure(const StepOperation& step, UseBytes uses);
  void gather_statistics(const StepOperation& step, float* gradient);
  void finish_norm(UseBytes uses, StepNumbers& numbers);
  void update(const StepOperation& step, UseBytes uses, const UpdateOptions& options,
              bool& all_finite);
  void update_or_keep(const StepOperation& step, UseBytes uses, StepNumbers& numbers);
  void update_on_device(const StepOperation& step, UseBytes uses, const UpdateOptions& options,
                        bool skipped);
  std::span<std::byte> shard_weights(const Shard& shard, UseBytes uses) const;
  void set_weights_aside(const StepOperation& step, UseBytes uses) const;
  void put_weights_back(const StepOperation& step, UseBytes uses) const;
  void load_shard(const StepOperation& step, UseBytes uses, const model::CheckpointReader& reader);

  const ModelLayout& layout_;
  model::Network& network_;
  device::Kernels& kernels_;
  device::Stream& stream_;
  ComputeScratch scratch_;
  DeviceUpdates device_updates_;
  GradientNorm norm_;
  std::vector<float> measured_;               ///< one block, of the CPU worker
  const int32_t* documents_there_ = nullptr;  ///< of this run's batches, which the network has
};

}  // namespace headrace::engine
