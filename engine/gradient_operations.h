#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/model_layout.h"
#include "engine/step_trace.h"
#include "scheduler/trace.h"

namespace headrace::engine {

/// Makes the operations of a step that begin with a module's fresh gradient and end with its
/// weights: sums, statistics, norm, updates. Those of a shard whose optimizer lives on the device
/// are work of the compute lane, the others of the CPU. Layout and estimate must outlive it.
class GradientOperations {
 public:
  /// Where they go, in their order.
  using Sink = std::function<void(scheduler::Lane lane, std::string name, double seconds,
                                  std::vector<scheduler::Use> uses, const StepOperation& step)>;

  GradientOperations(const ModelLayout& layout, const WorkEstimate& work, Sink sink)
      : layout_(layout), work_(work), sink_(std::move(sink)) {}

  /// Takes a module's fresh gradient: into its accumulators, which are created at its first one,
  /// or as it is. `last`: its gradients are final afterwards. `to_embedding`: into the embedding
  /// accumulators, where there are.
  void take(size_t module, int64_t micro_batch, bool last, bool to_embedding);
  /// `is_read`: updates wait for the norm.
  void finish_norm(bool is_read);
  /// Of all shards. `last_of_step`: nothing reads the norm afterwards.
  void update(size_t module, UpdateMode mode, bool last_of_step);
  /// Of a speculative layout, which leaves nothing of the optimizer on the device.
  void redo_update(size_t module);

 private:
  DType final_gradient(size_t module) const;
  void add(bool on_device, size_t module, const char* what, Bytes per_element,
           std::vector<scheduler::Use> uses, StepOperation step);
  void add_to(ObjectId accumulator, StepOperation step);
  void join_sums(size_t module, size_t shard, bool is_final);
  void round_sum(size_t module, size_t shard, bool second);
  void measure(size_t module, size_t shard);
  std::vector<scheduler::Use> update_uses(size_t module, size_t shard, bool keep) const;
  scheduler::Access weights_access(size_t shard) const;
  scheduler::Access norm_access();
  scheduler::Use norm_use(Tier tier);
  scheduler::Use statistics_use();
  Tier tier_of(bool on_device, const Shard& shard) const;

  const ModelLayout& layout_;
  const WorkEstimate& work_;
  Sink sink_;
  std::set<size_t> started_;  ///< accumulators that hold a gradient
  bool norm_started_ = false;
  bool statistics_started_ = false;
};

}  // namespace headrace::engine
