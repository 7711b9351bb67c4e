#include "engine/optimizer/update.h"

#include "base/check.h"
#include "engine/optimizer/moment_codes.h"
#include "engine/optimizer/update_kernels.h"

namespace headrace::engine {
namespace {

bool is_weight(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16;
}

void check(const UpdateOptions& o, const UpdateShard& s) {
  HR_CHECK(o.step >= 1, "optimizer step {}", o.step);
  HR_CHECK(s.count.count() >= 0, "update of {} elements", s.count);
  if (s.count.count() == 0) {
    return;
  }
  const int masters = static_cast<int>(s.master != nullptr) +
                      static_cast<int>(s.master_low != nullptr) +
                      static_cast<int>(s.weight_is_master);
  HR_CHECK(masters == 1, "{} of master, master_low and weight_is_master; one is needed", masters);
  HR_CHECK(s.master != nullptr || (s.weight != nullptr && s.weight_dtype == DType::bf16),
           "without a master array the weights must be bf16, not {}", to_string(s.weight_dtype));
  HR_CHECK(s.weight == nullptr || is_weight(s.weight_dtype), "weights of dtype {}",
           to_string(s.weight_dtype));
  HR_CHECK(s.gradient != nullptr, "no gradient of {} elements", s.count);
  HR_CHECK(s.gradient_dtype == DType::f32 || is_weight(s.gradient_dtype), "gradient of dtype {}",
           to_string(s.gradient_dtype));
  const int moments = moment_count(o.kind, o.momentum);
  HR_CHECK((moments < 1 || s.moment1 != nullptr) && (moments < 2 || s.moment2 != nullptr),
           "a moment array of {} elements is missing", s.count);
  const bool is_8bit = s.moment_dtype == DType::u8;
  HR_CHECK(s.moment_dtype == DType::f32 || s.moment_dtype == DType::bf16 ||
               (is_8bit && has_8bit_moments(o.kind)),
           "moments of dtype {}", to_string(s.moment_dtype));
  HR_CHECK(
      !is_8bit || ((moments < 1 || s.scale1 != nullptr) && (moments < 2 || s.scale2 != nullptr)),
      "scales of {} elements are missing", s.count);
  HR_CHECK(!is_8bit || s.first_element % kMomentBlock.count() == 0,
           "8-bit moments from element {} on, which begins no block", s.first_element);
  HR_CHECK(o.kind != OptimizerKind::sgd || !o.nesterov || (o.momentum > 0 && o.dampening == 0),
           "nesterov with momentum {} and dampening {}", o.momentum, o.dampening);
}

bool update_adam(const UpdateOptions& options, const PassOptions& pass, const UpdateShard& shard) {
  if (shard.moment_dtype == DType::bf16) {
    const FusedAdamCoefficients fused(options);
    if (fused.is_safe) {
      return fused_adam_update(fused, pass, shard);
    }
  }
  return adam_update(AdamCoefficients(options), pass, shard);
}

}  // namespace

int moment_count(OptimizerKind kind, double momentum) {
  switch (kind) {
    case OptimizerKind::adam:
      return 2;
    case OptimizerKind::adagrad:
    case OptimizerKind::lion:
      return 1;
    case OptimizerKind::sgd:
      return momentum == 0 ? 0 : 1;
  }
  HR_CHECK(false, "unknown optimizer {}", static_cast<int>(kind));
}

bool has_8bit_moments(OptimizerKind kind) {
  return kind != OptimizerKind::adagrad;
}

UpdateResult update(const UpdateOptions& options, const UpdateShard& shard) {
  check(options, shard);
  if (shard.count.count() == 0) {
    return {};
  }
  const PassOptions pass{options.gradient_scale, options.seed, options.step};
  switch (options.kind) {
    case OptimizerKind::adam:
      return {update_adam(options, pass, shard)};
    case OptimizerKind::adagrad:
      return {adagrad_update(AdagradCoefficients(options), pass, shard)};
    case OptimizerKind::lion:
      return {lion_update(LionCoefficients(options), pass, shard)};
    case OptimizerKind::sgd:
      return {sgd_update(SgdCoefficients(options), options.momentum != 0, pass, shard)};
  }
  HR_CHECK(false, "unknown optimizer {}", static_cast<int>(options.kind));
}

}  // namespace headrace::engine
