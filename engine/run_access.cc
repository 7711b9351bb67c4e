#include "engine/run_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "engine/resume.h"
#include "engine/run_setup.h"
#include "engine/run_state.h"
#include "engine/state_reader.h"
#include "tiers/catalog.h"
#include "tiers/run_directory.h"

namespace headrace::engine {

namespace {

/// A range of bytes of one array.
struct ArrayRange {
  std::string name;
  Bytes begin;
  DType dtype = DType::f32;
  int64_t first = 0;  ///< element of the module's packed vector with which it begins
  int64_t count = 0;
};

/// "model.norm.weight elements 3 to 9, ..." for elements [first, end) of a module's packed vector.
std::string parameters_in(const proto::StoredModule& module, int64_t first, int64_t end) {
  std::string text;
  for (const proto::StoredParameter& parameter : module.parameters()) {
    const int64_t from = std::max(first, parameter.offset());
    const int64_t to = std::min(end, parameter.offset() + parameter.count());
    if (from < to) {
      text += fmt::format("{}{} elements {} to {}", text.empty() ? "" : ", ", parameter.name(),
                          from - parameter.offset() + parameter.first(),
                          to - 1 - parameter.offset() + parameter.first());
    }
  }
  return text;
}

/// The arrays of the object, if this module has it.
std::vector<ArrayRange> arrays_of(const std::string& object, const proto::StoredModule& module,
                                  const proto::StateLayout& layout) {
  const DType dtype = dtype_from(layout.dtype());
  if (object == module.weights()) {
    return {{"weights", Bytes(0), dtype, 0, module.count()}};
  }
  const StateFormat format = state_format_of(layout);
  for (const proto::StoredShard& shard : module.shards()) {
    if (object != shard.state()) {
      continue;
    }
    const StateFormat::Offsets offsets = format.offsets(Elements(shard.count()));
    std::vector<ArrayRange> arrays;
    if (format.master != MasterPlace::weight) {
      const bool is_split = format.master == MasterPlace::split;
      arrays.push_back({is_split ? "low half of the master" : "fp32 master", offsets.master,
                        is_split ? DType::u16 : DType::f32, shard.first(), shard.count()});
    }
    for (int i = 0; i < format.moments; ++i) {
      arrays.push_back({fmt::format("moment {}", i + 1), offsets.moment[static_cast<size_t>(i)],
                        format.moment_dtype, shard.first(), shard.count()});
    }
    return arrays;
  }
  return {};
}

}  // namespace

std::shared_ptr<tiers::ExtentStore> open_run(const std::string& folder,
                                             std::optional<Bytes> budget) {
  const std::vector<std::string> directories = run_directories_of(folder);
  tiers::ExtentStoreOptions options;
  for (const std::string& directory : directories) {
    const std::filesystem::path path(std::filesystem::absolute(directory).lexically_normal());
    options.paths.push_back(path.has_filename() ? path.parent_path().string()
                                                : path.parent_path().parent_path().string());
  }
  options.run_id = tiers::read_run_identity(directories.front()).run_id;
  options.disk_budget =
      budget.value_or(default_disk_budget(options.paths.front()) + blocks_of(directories));
  return tiers::ExtentStore::open(options, aio::IoEngine::create({}));
}

std::vector<tiers::GenerationInfo> list_generations(const std::string& folder) {
  return tiers::describe_generations(
      tiers::read_catalog(run_directories_of(folder).front() + "/catalog"));
}

proto::RunState run_state_of(tiers::ExtentStore& store, std::optional<uint64_t> generation) {
  const std::string run = store.directories().front();
  for (const tiers::GenerationInfo& info : store.generations()) {
    if (generation ? info.generation == *generation : info.is_committed) {
      if (info.is_committed && !info.is_snapshot && store.is_torn()) {
        throw InputError(fmt::format(
            "{}: generation {} is not whole, the run ended while it was being overwritten "
            "(headrace.durability in_place); name a snapshot with --generation",
            run, info.generation));
      }
      return parse_run_state(info.run_state, run);
    }
  }
  throw InputError(generation ? fmt::format("{} has no generation {}; headrace checkpoint list "
                                            "--run {} shows those it has",
                                            run, *generation, run)
                              : fmt::format("{} ended before its first generation", run));
}

std::string describe_damage(const tiers::Damage& damage, const proto::StateLayout& layout) {
  std::string text;
  for (const proto::StoredModule& module : layout.modules()) {
    for (const ArrayRange& array : arrays_of(damage.object, module, layout)) {
      const int64_t width = size_of(array.dtype).count();
      const int64_t from = std::max<int64_t>(damage.value_offset - array.begin.count(), 0) / width;
      const int64_t end_byte = damage.value_offset + damage.length.count() - array.begin.count();
      const int64_t to = std::min(array.count, (end_byte + width - 1) / width);
      if (from >= to) {
        continue;
      }
      const std::string parameters = parameters_in(module, array.first + from, array.first + to);
      if (!parameters.empty()) {
        text += fmt::format("{}{} of {}", text.empty() ? "" : "; ", array.name, parameters);
      }
    }
  }
  return text.empty() ? "no part of a parameter" : text;
}

}  // namespace headrace::engine
