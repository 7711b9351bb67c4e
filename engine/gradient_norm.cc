#include "engine/gradient_norm.h"

#include <cstring>

#include "device/cpu/row_kernels.h"

namespace headrace::engine {

GradientNorm::GradientNorm(const ModelLayout& layout) : layout_(layout) {
  for (const ModuleObjects& module : layout.modules) {
    sums_.emplace_back(static_cast<size_t>(device::statistics_blocks(module.spec.count)));
  }
}

void GradientNorm::note_block(size_t module, Elements first, const float* gradient,
                              Elements count) {
  sums_[module][static_cast<size_t>(first / kStatisticsBlock)] =
      device::cpu::gradient_stats(gradient, count).sum_of_squares;
}

void GradientNorm::note_device(std::span<const std::byte> sums) {
  for (size_t m = 0; m < layout_.modules.size(); ++m) {
    for (const Shard& shard : layout_.modules[m].shards) {
      if (shard.statistics) {
        const auto blocks = static_cast<size_t>(device::statistics_blocks(shard.count));
        std::memcpy(&sums_[m][static_cast<size_t>(shard.first / kStatisticsBlock)],
                    sums.data() + static_cast<size_t>(*shard.statistics) * sizeof(double),
                    blocks * sizeof(double));
      }
    }
  }
}

double GradientNorm::sum_of_squares() const {
  double sum = 0;
  for (const std::vector<double>& module : sums_) {
    for (const double block : module) {
      sum += block;
    }
  }
  return sum;
}

}  // namespace headrace::engine
