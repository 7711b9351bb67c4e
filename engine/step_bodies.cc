#include "engine/step_bodies.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "device/cpu/row_kernels.h"
#include "engine/master_weights.h"
#include "engine/shard_arrays.h"
#include "engine/update_parts.h"

namespace headrace::engine {

namespace {

/// What the optimizer multiplies a gradient by.
float gradient_scale(double loss_scale, double clip_divisor) {
  return static_cast<float>(1.0 / (loss_scale * clip_divisor));
}

/// By how many labels the losses of micro-batch m are divided: Hugging Face's loss is the mean over
/// its counted ones, averaged over the micro-batches, or the mean over those of the step.
double counted_labels(const StepNumbers& numbers, const std::vector<model::TokenBatch>& batches,
                      size_t m) {
  if (!numbers.mean_over_step) {
    return static_cast<double>(std::max<int64_t>(batches[m].counted_labels, 1));
  }
  int64_t counted = 0;
  for (const model::TokenBatch& batch : batches) {
    counted += batch.counted_labels;
  }
  return static_cast<double>(std::max<int64_t>(counted, 1)) /
         static_cast<double>(numbers.micro_batches);
}

void clear_on_host(std::byte* data, Bytes size) {
  std::fill_n(data, size.count(), std::byte{0});
}

}  // namespace

StepBodies::StepBodies(const ModelLayout& layout, model::Network& network, device::Kernels& kernels,
                       device::Stream& stream, const ComputeScratch& scratch)
    : layout_(layout),
      network_(network),
      kernels_(kernels),
      stream_(stream),
      scratch_(scratch),
      device_updates_(layout, kernels, stream, scratch.not_finite),
      norm_(layout),
      measured_(static_cast<size_t>(kStatisticsBlock.count())) {}

OperationBody StepBodies::training(const StepTrace& trace,
                                   const std::vector<model::TokenBatch>& batches,
                                   StepNumbers& numbers) {
  HR_CHECK(static_cast<int64_t>(batches.size()) == numbers.micro_batches,
           "{} batches for {} micro-batches", batches.size(), numbers.micro_batches);
  numbers.losses.assign(batches.size(), 0.0);
  documents_there_ = nullptr;
  // What an update that does not wait for the norm assumes: a finite gradient that is not clipped.
  const UpdateMode mode = trace.update_mode;
  HR_CHECK(mode != UpdateMode::during_backward ||
               (numbers.gradient_clipping == 0 && !numbers.check_finite),
           "updates during backward cannot wait for the norm");
  UpdateOptions assumed = numbers.optimizer;
  assumed.gradient_scale = gradient_scale(numbers.loss_scale, 1);
  numbers.device_updates_finite = true;
  auto on_device = std::count_if(
      trace.operations.begin(), trace.operations.end(),
      [](const StepOperation& step) { return step.kind == StepKind::update && step.on_device; });
  if (on_device > 0) {
    device_updates_.start();
  }
  return [this, &trace, &batches, &numbers, mode, assumed, on_device](uint32_t operation,
                                                                      UseBytes uses) mutable {
    const StepOperation& step = trace.operations[operation];
    switch (step.kind) {
      case StepKind::accumulate:
        accumulate(step, uses);
        return;
      case StepKind::join_sums:
        join_sums(step, uses);
        return;
      case StepKind::round_sum:
        round_sum(step, uses);
        return;
      case StepKind::measure:
        measure(step, uses);
        return;
      case StepKind::finish_norm:
        finish_norm(uses, numbers);
        return;
      case StepKind::update:
        if (step.on_device) {
          // Without a norm to wait for a step is not skipped, and `numbers` may just be written.
          const bool has_norm = mode == UpdateMode::after_norm;
          update_on_device(step, uses, has_norm ? numbers.optimizer : assumed,
                           has_norm && numbers.skipped);
          if (--on_device == 0) {  // the compute lane takes them in order
            device_updates_.finish(&numbers.device_updates_finite);
          }
          return;
        }
        if (mode == UpdateMode::after_norm) {
          update_or_keep(step, uses, numbers);
          return;
        }
        if (mode == UpdateMode::speculative) {
          set_weights_aside(step, uses);
        }
        update(step, uses, assumed, numbers.host_updates_finite);
        return;
      default:
        break;
    }
    const auto m = static_cast<size_t>(step.micro_batch);
    const double counted = counted_labels(numbers, batches, m);
    const double scale =
        numbers.loss_scale / (counted * static_cast<double>(numbers.micro_batches));
    compute(step, uses, batches[m], static_cast<float>(scale), &numbers.losses[m]);
    if (gives_loss(step)) {
      stream_.run_on_host([loss = &numbers.losses[m], counted] { *loss /= counted; });
    }
  };
}

OperationBody StepBodies::redo(const StepTrace& trace, StepNumbers& numbers) {
  numbers.host_updates_finite = true;
  return [this, &trace, &numbers](uint32_t operation, UseBytes uses) {
    const StepOperation& step = trace.operations[operation];
    put_weights_back(step, uses);
    update_or_keep(step, uses, numbers);
  };
}

OperationBody StepBodies::evaluation(const StepTrace& trace, const model::TokenBatch& batch,
                                     double& loss_sum) {
  documents_there_ = nullptr;
  return [this, &trace, &batch, &loss_sum](uint32_t operation, UseBytes uses) {
    compute(trace.operations[operation], uses, batch, 0.0F, &loss_sum);
  };
}

OperationBody StepBodies::load(const StepTrace& trace, const model::CheckpointReader& reader,
                               const std::function<void(Elements)>& progress) {
  return [this, &trace, &reader, progress, done = Elements()](uint32_t operation,
                                                              UseBytes uses) mutable {
    const StepOperation& step = trace.operations[operation];
    load_shard(step, uses, reader);
    done += layout_.modules[step.module].shards[step.shard].count;
    progress(done);
  };
}

OperationBody StepBodies::save(const StepTrace& trace, model::CheckpointWriter& writer,
                               const std::function<void(Elements)>& progress) {
  return [this, &trace, &writer, progress, done = Elements()](uint32_t operation,
                                                              UseBytes uses) mutable {
    const model::ModuleSpec& spec = layout_.modules[trace.operations[operation].module].spec;
    const std::byte* weights = uses[0].data();
    writer.write_module(spec, [&](Elements first, std::span<float> out) {
      device::cpu::cast(weights + bytes_for(first, layout_.dtype).count(), layout_.dtype,
                        out.data(), DType::f32, Elements(static_cast<int64_t>(out.size())));
    });
    done += spec.count;
    progress(done);
  };
}

/// In training and evaluation.
bool StepBodies::gives_loss(const StepOperation& step) const {
  return step.kind == StepKind::head_train || step.kind == StepKind::head_evaluate ||
         (step.kind == StepKind::head_fold && step.tile == layout_.vocab_tiles - 1);
}

/// Leaves the gaps between parameters as they are.
void StepBodies::accumulate(const StepOperation& step, UseBytes uses) {
  const ModuleObjects& module = layout_.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  const std::byte* gradient = uses[0].data();
  float* accumulator = floats(uses[1]);
  for_parameter_ranges(
      module.spec, shard.first, shard.count,
      [&](const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
        const std::byte* const source =
            gradient + bytes_for(parameter.offset + Elements(first), layout_.dtype).count();
        if (step.on_device) {
          kernels_.accumulate(stream_, source, layout_.dtype, accumulator + at, Elements(count),
                              step.first_gradient);
        } else {
          device::cpu::accumulate(source, layout_.dtype, accumulator + at, Elements(count),
                                  step.first_gradient);
        }
      },
      [](int64_t /*at*/, int64_t /*count*/) {});
  if (step.last_gradient) {
    gather_statistics(step, accumulator);
  }
}

void StepBodies::clear_gaps(const StepOperation& step, float* gradient) const {
  const ModuleObjects& module = layout_.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  for_parameter_ranges(
      module.spec, shard.first, shard.count,
      [](const model::ParameterSpec& /*parameter*/, int64_t /*first*/, int64_t /*at*/,
         int64_t /*count*/) {},
      [&](int64_t at, int64_t count) { std::fill_n(gradient + at, count, 0.0F); });
}

void StepBodies::join_sums(const StepOperation& step, UseBytes uses) {
  if (step.on_device) {
    device_updates_.join_sums(step, uses);
    return;
  }
  const Elements count = layout_.modules[step.module].shards[step.shard].count;
  float* const sum = floats(uses[1]);
  device::cpu::accumulate(uses[0].data(), DType::f32, sum, count, false);
  if (step.last_gradient) {
    gather_statistics(step, sum);
  }
}

/// Leaves the gaps between parameters as they are.
void StepBodies::round_sum(const StepOperation& step, UseBytes uses) {
  const ModuleObjects& module = layout_.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  const float* sum = floats(uses[0]);
  std::byte* const rounded = uses[1].data();
  for_parameter_ranges(
      module.spec, shard.first, shard.count,
      [&](const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
        std::byte* const target =
            rounded + bytes_for(parameter.offset + Elements(first), layout_.dtype).count();
        if (step.on_device) {
          kernels_.cast(stream_, sum + at, DType::f32, target, layout_.dtype, Elements(count));
        } else {
          device::cpu::cast(sum + at, DType::f32, target, layout_.dtype, Elements(count));
        }
      },
      [](int64_t /*at*/, int64_t /*count*/) {});
}

/// In the same blocks and order as an accumulator's statistics; gaps count as zeros there too.
void StepBodies::measure(const StepOperation& step, UseBytes uses) {
  if (step.on_device) {
    device_updates_.measure(step, uses);
    return;
  }
  if (!layout_.modules[step.module].packed_gradient) {
    gather_statistics(step, floats(uses[0]));
    return;
  }
  const ModuleObjects& module = layout_.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  const std::byte* gradient = uses[0].data();
  for (Elements at; at < shard.count; at += kStatisticsBlock) {
    const Elements count = std::min(kStatisticsBlock, shard.count - at);
    for_parameter_ranges(
        module.spec, shard.first + at, count,
        [&](const model::ParameterSpec& parameter, int64_t first, int64_t to, int64_t length) {
          const Elements packed = parameter.offset + Elements(first);
          device::cpu::cast(gradient + bytes_for(packed, layout_.dtype).count(), layout_.dtype,
                            measured_.data() + to, DType::f32, Elements(length));
        },
        [&](int64_t to, int64_t length) { std::fill_n(measured_.data() + to, length, 0.0F); });
    norm_.note_block(step.module, shard.first + at, measured_.data(), count);
  }
}

/// Of a final sum, in which the gaps become zeros.
void StepBodies::gather_statistics(const StepOperation& step, float* gradient) {
  clear_gaps(step, gradient);
  const Shard& shard = layout_.modules[step.module].shards[step.shard];
  for (Elements at; at < shard.count; at += kStatisticsBlock) {
    norm_.note_block(step.module, shard.first + at, gradient + at.count(),
                     std::min(kStatisticsBlock, shard.count - at));
  }
}

void StepBodies::finish_norm(UseBytes uses, StepNumbers& numbers) {
  if (layout_.device_statistics) {
    norm_.note_device(uses[1]);
  }
  const double sum = norm_.sum_of_squares();
  numbers.gradient_norm = std::sqrt(sum) / numbers.loss_scale;
  numbers.skipped = numbers.check_finite && !std::isfinite(sum);
  // DeepSpeed's clip: the coefficient is 1 / max(1, (norm + 1e-6) / clip).
  double divisor = 1;
  if (numbers.gradient_clipping > 0) {
    divisor = std::max(1.0, (numbers.gradient_norm + 1e-6) / numbers.gradient_clipping);
  }
  numbers.clipped = divisor != 1;
  numbers.optimizer.gradient_scale = gradient_scale(numbers.loss_scale, divisor);
}

/// The weights of a shard within its module's packed vector.
std::span<std::byte> StepBodies::shard_weights(const Shard& shard, UseBytes uses) const {
  return uses[2].subspan(static_cast<size_t>(bytes_for(shard.first, layout_.dtype).count()),
                         static_cast<size_t>(bytes_for(shard.count, layout_.dtype).count()));
}

void StepBodies::set_weights_aside(const StepOperation& step, UseBytes uses) const {
  const Shard& shard = layout_.modules[step.module].shards[step.shard];
  if (shard.weights_before) {
    const std::span<std::byte> weights = shard_weights(shard, uses);
    std::copy(weights.begin(), weights.end(), uses[3].begin());
  }
}

void StepBodies::put_weights_back(const StepOperation& step, UseBytes uses) const {
  const Shard& shard = layout_.modules[step.module].shards[step.shard];
  if (shard.weights_before) {
    const std::span<std::byte> weights = shard_weights(shard, uses);
    std::copy_n(uses[3].begin(), weights.size(), weights.begin());
  }
}

void StepBodies::update_on_device(const StepOperation& step, UseBytes uses,
                                  const UpdateOptions& options, bool skipped) {
  if (skipped) {
    device_updates_.rewrite_weights(step, uses);
  } else {
    device_updates_.update(step, uses, options);
  }
}

/// With the norm known: an update, or none, where the weights may be written anew all the same.
void StepBodies::update_or_keep(const StepOperation& step, UseBytes uses, StepNumbers& numbers) {
  if (!numbers.skipped) {
    update(step, uses, numbers.optimizer, numbers.host_updates_finite);
    return;
  }
  restore_weights(begin_update(layout_, step, uses, clear_on_host));
}

void StepBodies::update(const StepOperation& step, UseBytes uses, const UpdateOptions& options,
                        bool& all_finite) {
  update_parts(
      layout_, step, uses,
      [&](const UpdateShard& part) { all_finite &= engine::update(options, part).all_finite; },
      clear_on_host);
}

void StepBodies::load_shard(const StepOperation& step, UseBytes uses,
                            const model::CheckpointReader& reader) {
  const ModuleObjects& module = layout_.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  std::fill(uses[0].begin(), uses[0].end(), std::byte{0});
  if (step.shard == 0) {  // the padding; the rest is set below and by the other shards
    std::fill(uses[1].begin(), uses[1].end(), std::byte{0});
  }
  const UpdateShard arrays = shard_arrays(layout_.state, layout_.dtype, shard.first, shard.count,
                                          uses[0].data(), uses[1].data());
  std::vector<float> values(static_cast<size_t>(std::min(kStatisticsBlock, shard.count).count()));
  const auto in_pieces = [&](int64_t at, int64_t count, const auto& fill) {
    for (int64_t done = 0; done < count;) {
      const auto piece = std::span(values).first(
          static_cast<size_t>(std::min(count - done, static_cast<int64_t>(values.size()))));
      fill(done, piece);
      set_master(arrays, at + done, piece);
      done += static_cast<int64_t>(piece.size());
    }
  };
  for_parameter_ranges(
      module.spec, shard.first, shard.count,
      [&](const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
        in_pieces(at, count, [&](int64_t done, std::span<float> piece) {
          model::read_runs(parameter.part(), first + done, piece,
                           [&](int64_t element, std::span<float> run) {
                             reader.read_f32(parameter.name, Elements(element), run);
                           });
        });
      },
      [&](int64_t at, int64_t count) {
        in_pieces(at, count, [](int64_t /*done*/, std::span<float> piece) {
          std::fill(piece.begin(), piece.end(), 0.0F);
        });
      });
}

}  // namespace headrace::engine
