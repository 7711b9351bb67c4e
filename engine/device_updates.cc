#include "engine/device_updates.h"

#include "engine/master_weights.h"
#include "engine/optimizer/device_update.h"
#include "engine/shard_arrays.h"

namespace headrace::engine {

void DeviceUpdates::start() {
  stream_.fill_zero_async(not_finite_, Bytes(sizeof(int32_t)));
}

void DeviceUpdates::finish(bool* all_finite) {
  stream_.copy_async(&fetched_, not_finite_, Bytes(sizeof(int32_t)));
  stream_.run_on_host([this, all_finite] { *all_finite = fetched_ == 0; });
}

const Shard& DeviceUpdates::shard_of(const StepOperation& step) const {
  return layout_.modules[step.module].shards[step.shard];
}

void DeviceUpdates::clear(std::byte* data, Bytes size) {
  stream_.fill_zero_async(data, size);
}

void DeviceUpdates::measure(const StepOperation& step, UseBytes uses) {
  const ModuleObjects& module = layout_.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  const bool is_packed = module.packed_gradient.has_value();
  const DType dtype = is_packed ? layout_.dtype : DType::f32;
  std::byte* const gradient =
      uses[0].data() + (is_packed ? bytes_for(shard.first, dtype).count() : 0);
  for_parameter_ranges(
      module.spec, shard.first, shard.count,
      [](const model::ParameterSpec& /*parameter*/, int64_t /*first*/, int64_t /*at*/,
         int64_t /*count*/) {},
      [&](int64_t at, int64_t count) {
        clear(gradient + bytes_for(Elements(at), dtype).count(), bytes_for(Elements(count), dtype));
      });
  auto* const sums = reinterpret_cast<double*>(uses[1].data()) + *shard.statistics;
  kernels_.gradient_statistics(stream_, gradient, dtype, shard.count, sums);
}

void DeviceUpdates::join_sums(const StepOperation& step, UseBytes uses) {
  kernels_.accumulate(stream_, uses[0].data(), DType::f32, reinterpret_cast<float*>(uses[1].data()),
                      shard_of(step).count, false);
}

void DeviceUpdates::clear_padding(const StepOperation& step, std::span<std::byte> weights) {
  if (step.shard == 0) {
    const Bytes used = bytes_for(layout_.modules[step.module].spec.count, layout_.dtype);
    clear(weights.data() + used.count(), Bytes(static_cast<int64_t>(weights.size())) - used);
  }
}

void DeviceUpdates::post(const UpdateOptions& options, const UpdateShard& arrays) {
  kernels_.optimizer_update(stream_, device_step(options), device_arrays(arrays), not_finite_);
}

void DeviceUpdates::update(const StepOperation& step, UseBytes uses, const UpdateOptions& options) {
  const ModuleObjects& module = layout_.modules[step.module];
  const Shard& shard = module.shards[step.shard];
  UpdateShard arrays = shard_arrays(layout_.state, layout_.dtype, shard.first, shard.count,
                                    uses[0].data(), uses[2].data());
  clear_padding(step, uses[2]);
  if (!module.packed_gradient) {
    arrays.gradient = uses[1].data();
    post(options, arrays);
    return;
  }
  // As on the CPU: what is in the gaps of the state is zero and stays so, and is made zero in
  // weights that are written anew.
  for_parameter_ranges(
      module.spec, shard.first, shard.count,
      [&](const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
        UpdateShard part = slice(arrays, Elements(at), Elements(count));
        const Elements packed = parameter.offset + Elements(first);
        part.gradient = uses[1].data() + bytes_for(packed, layout_.dtype).count();
        part.gradient_dtype = layout_.dtype;
        post(options, part);
      },
      [&](int64_t at, int64_t count) {
        if (arrays.weight != nullptr) {
          const UpdateShard gap = slice(arrays, Elements(at), Elements(count));
          clear(static_cast<std::byte*>(gap.weight),
                bytes_for(Elements(count), arrays.weight_dtype));
        }
      });
}

void DeviceUpdates::rewrite_weights(const StepOperation& step, UseBytes uses) {
  const Shard& shard = shard_of(step);
  const UpdateShard arrays = shard_arrays(layout_.state, layout_.dtype, shard.first, shard.count,
                                          uses[0].data(), uses[2].data());
  clear_padding(step, uses[2]);
  if (arrays.master != nullptr && arrays.weight != nullptr) {
    device::OptimizerStep rewrite;
    rewrite.rule = device::OptimizerRule::rewrite;
    kernels_.optimizer_update(stream_, rewrite, device_arrays(arrays), not_finite_);
  }
}

}  // namespace headrace::engine
