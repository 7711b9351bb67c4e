#include "engine/repair.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "engine/master_weights.h"
#include "engine/run_state.h"
#include "engine/state_reader.h"

namespace headrace::engine {

namespace {

/// Makes a module's 16-bit weights anew, rounded from the fp32 master as the optimizers do.
class WeightsGuess {
 public:
  explicit WeightsGuess(tiers::ExtentStore& store) : store_(store) {
    for (const tiers::GenerationInfo& info : store.generations()) {
      layouts_[info.generation] =
          parse_run_state(info.run_state, store.directories().front()).layout();
    }
  }

  bool operator()(const tiers::Damage& damage, std::span<std::byte> out) const {
    return std::any_of(damage.generations.begin(), damage.generations.end(),
                       [&](uint64_t generation) { return guess(generation, damage, out); });
  }

 private:
  /// From the master of this generation; false where it has none, or one that cannot be read.
  bool guess(uint64_t generation, const tiers::Damage& damage, std::span<std::byte> out) const {
    const auto found = layouts_.find(generation);
    if (found == layouts_.end()) {
      return false;
    }
    try {
      if (state_format_of(found->second).master != MasterPlace::state) {
        return false;
      }
      for (const proto::StoredModule& module : found->second.modules()) {
        if (module.weights() == damage.object) {
          fill(generation, found->second, module, damage.value_offset, out);
          return true;
        }
      }
    } catch (const Error&) {
      // The master is damaged too, or is not what the layout says: other extents may have theirs.
    }
    return false;
  }

  void fill(uint64_t generation, const proto::StateLayout& layout,
            const proto::StoredModule& module, int64_t offset, std::span<std::byte> out) const {
    constexpr int64_t kPiece = 65536;
    const DType dtype = dtype_from(layout.dtype());
    const int64_t width = size_of(dtype).count();
    const int64_t first = offset / width;
    const int64_t end = first + static_cast<int64_t>(out.size()) / width;
    std::fill(out.begin(), out.end(), std::byte{0});  // gaps and padding
    UpdateShard weights;
    weights.count = Elements(end - first);
    weights.weight = out.data();
    weights.weight_dtype = dtype;
    std::vector<float> values;
    StateReader reader(store_, generation, layout);
    for (const proto::StoredParameter& parameter : module.parameters()) {
      const int64_t last = std::min(end, parameter.offset() + parameter.count());
      for (int64_t at = std::max(first, parameter.offset()); at < last; at += kPiece) {
        values.resize(static_cast<size_t>(std::min(kPiece, last - at)));
        // The module may hold a tile of the parameter only.
        model::read_runs(part_of(parameter), at - parameter.offset(), std::span(values),
                         [&](int64_t element, std::span<float> run) {
                           reader.read(parameter.name(), StateArray::master, Elements(element),
                                       run);
                         });
        set_master(weights, at - first, values);
      }
    }
  }

  tiers::ExtentStore& store_;
  std::map<uint64_t, proto::StateLayout> layouts_;
};

}  // namespace

std::vector<tiers::Repair> repair_damage(tiers::ExtentStore& store,
                                         const std::vector<tiers::Damage>& damage) {
  return store.repair(damage, WeightsGuess(store));
}

bool is_damaged(uint64_t generation, const std::vector<tiers::Damage>& damage) {
  return std::any_of(damage.begin(), damage.end(), [&](const tiers::Damage& each) {
    return std::count(each.generations.begin(), each.generations.end(), generation) > 0;
  });
}

std::optional<uint64_t> newest_whole_snapshot(const tiers::ExtentStore& store,
                                              const std::vector<tiers::Damage>& damage) {
  std::optional<uint64_t> newest;
  for (const tiers::GenerationInfo& info : store.generations()) {
    if (info.is_snapshot && !is_damaged(info.generation, damage)) {
      newest = std::max(newest.value_or(0), info.generation);
    }
  }
  return newest;
}

}  // namespace headrace::engine
