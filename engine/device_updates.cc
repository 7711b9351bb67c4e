#include "engine/device_updates.h"

#include "engine/optimizer/device_update.h"
#include "engine/shard_arrays.h"
#include "engine/update_parts.h"

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

void DeviceUpdates::update(const StepOperation& step, UseBytes uses, const UpdateOptions& options) {
  update_parts(
      layout_, step, uses,
      [&](const UpdateShard& part) {
        kernels_.optimizer_update(stream_, device_step(options), device_arrays(part), not_finite_);
      },
      [&](std::byte* data, Bytes size) { clear(data, size); });
}

void DeviceUpdates::rewrite_weights(const StepOperation& step, UseBytes uses) {
  const UpdateShard arrays =
      begin_update(layout_, step, uses, [&](std::byte* data, Bytes size) { clear(data, size); });
  if (arrays.master != nullptr && arrays.weight != nullptr) {
    device::OptimizerStep rewrite;
    rewrite.rule = device::OptimizerRule::rewrite;
    kernels_.optimizer_update(stream_, rewrite, device_arrays(arrays), not_finite_);
  }
}

}  // namespace headrace::engine
