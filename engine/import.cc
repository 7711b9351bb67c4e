#include "engine/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/resume.h"
#include "engine/run_setup.h"
#include "engine/shard_arrays.h"
#include "engine/state_transfer.h"
#include "model/checkpoint.h"
#include "model/checkpoint_file.h"
#include "model/torch_file.h"
#include "tiers/host_memory.h"

namespace headrace::engine {

namespace fs = std::filesystem;

namespace {

/// Elements of a shard: their state is one object, and is in memory as a whole.
constexpr Elements kShard{int64_t{4} << 20};
constexpr Bytes kNameLimit{4096};

/// Where the numbers come from.
class Source {
 public:
  virtual ~Source() = default;
  virtual int moments() const = 0;
  virtual int64_t step() const = 0;
  /// InputError where the parameter is missing or has another shape.
  virtual void check(const model::ParameterSpec& parameter) = 0;
  virtual void read(const model::ParameterSpec& parameter, StateArray array, Elements first,
                    std::span<float> out) = 0;
};

class HuggingFaceSource final : public Source {
 public:
  HuggingFaceSource(const std::string& folder, const std::vector<model::ModuleSpec>& modules)
      : reader_(folder) {
    reader_.check(modules);
  }
  int moments() const override { return 0; }
  int64_t step() const override { return 0; }
  void check(const model::ParameterSpec& /*parameter*/) override {}  // in the constructor, all
  void read(const model::ParameterSpec& parameter, StateArray /*array*/, Elements first,
            std::span<float> out) override {
    reader_.read_f32(parameter.name, first, out);
  }

 private:
  model::CheckpointReader reader_;
};

class UniversalSource final : public Source {
 public:
  explicit UniversalSource(std::string zero) : zero_(std::move(zero)) {}
  int moments() const override { return 2; }
  int64_t step() const override { return step_; }

  void check(const model::ParameterSpec& parameter) override {
    for (const StateArray array : {StateArray::master, StateArray::moment1, StateArray::moment2}) {
      const model::TorchFile file(path(parameter, array));
      // Some writers flatten; the order of the elements is the same.
      const bool is_flat = file.shape().size() == 1;
      if (file.count() != parameter.count || (!is_flat && file.shape() != parameter.shape)) {
        throw InputError(fmt::format("{} has shape [{}], but {} has [{}]", path(parameter, array),
                                     fmt::join(file.shape(), ", "), parameter.name,
                                     fmt::join(parameter.shape, ", ")));
      }
    }
    const std::string step_path = fmt::format("{}/{}/step.pt", zero_, parameter.name);
    if (step_ == 0 && fs::exists(step_path)) {
      step_ = step_in(model::TorchFile(step_path));
    }
  }

  void read(const model::ParameterSpec& parameter, StateArray array, Elements first,
            std::span<float> out) override {
    std::unique_ptr<model::TorchFile>& file = files_[array];
    std::string& name = names_[array];
    if (name != parameter.name) {
      file = std::make_unique<model::TorchFile>(path(parameter, array));
      name = parameter.name;
    }
    file->read_f32(first, out);
  }

 private:
  /// A number, or a tensor that holds one.
  static int64_t step_in(const model::TorchFile& file) {
    if (file.number()) {
      return *file.number();
    }
    std::array<float, 1> value{};
    file.read_f32(Elements(0), value);
    return std::llround(value[0]);
  }

  std::string path(const model::ParameterSpec& parameter, StateArray array) const {
    const char* const name = array == StateArray::master    ? "fp32"
                             : array == StateArray::moment1 ? "exp_avg"
                                                            : "exp_avg_sq";
    return fmt::format("{}/{}/{}.pt", zero_, parameter.name, name);
  }

  std::string zero_;
  int64_t step_ = 0;
  std::map<StateArray, std::unique_ptr<model::TorchFile>> files_;
  std::map<StateArray, std::string> names_;
};

/// The folder zero/ of a universal checkpoint; empty where the folder is none.
std::string universal_folder(const std::string& folder) {
  std::string inner = folder;
  if (fs::exists(folder + "/latest_universal")) {
    inner = folder + "/" + model::read_text_file(folder + "/latest_universal", kNameLimit);
    inner.erase(inner.find_last_not_of(" \n\r") + 1);
  }
  return fs::exists(inner + "/zero") ? inner + "/zero" : "";
}

/// Puts the shards together and writes them.
class Importer {
 public:
  Importer(const ImportOptions& options, ImportProgress progress)
      : options_(options),
        progress_(std::move(progress)),
        model_folder_(options.model_folder.empty() ? options.input_folder : options.model_folder),
        config_(model::load_model_config(model_folder_)),
        source_(make_source()),
        layout_(make_layout(config_, layout_options())) {}

  std::vector<std::string> run() {
    for (const ModuleObjects& module : layout_.modules) {
      total_ += module.spec.count.count();
      for (const model::ParameterSpec& parameter : module.spec.parameters) {
        source_->check(parameter);
      }
    }
    const model::OutputFolder output(options_.output_folder);
    const auto store = make_store();
    for (const ModuleObjects& module : layout_.modules) {
      for (const Shard& shard : module.shards) {
        write_shard(*store, module, shard);
      }
    }
    store->commit(static_cast<uint64_t>(source_->step()),
                  {{kRunStateKey, state().SerializeAsString()}});
    write_run_pointer(options_.output_folder, store->directories());
    return store->directories();
  }

 private:
  std::unique_ptr<Source> make_source() const {
    const std::string zero = universal_folder(options_.input_folder);
    if (!zero.empty()) {
      return std::make_unique<UniversalSource>(zero);
    }
    return std::make_unique<HuggingFaceSource>(options_.input_folder, model::module_specs(config_));
  }

  /// Masters and moments in the shards, so that no whole module is in memory.
  LayoutOptions layout_options() const {
    LayoutOptions options;
    options.dtype = DType::bf16;
    options.state.split_master = false;
    options.state.moments = source_->moments();
    options.shard_max = kShard;
    options.tokens = 1;
    return options;
  }

  std::shared_ptr<tiers::ExtentStore> make_store() const {
    tiers::ExtentStoreOptions store;
    store.paths = options_.paths;
    if (store.paths.empty()) {
      store.paths = {options_.output_folder};
    }
    store.run_id = options_.run_id;
    store.disk_budget = default_disk_budget(store.paths.front());
    store.keep_on_close = true;
    return tiers::ExtentStore::create(store, aio::IoEngine::create({}));
  }

  void write_shard(tiers::ExtentStore& store, const ModuleObjects& module, const Shard& shard) {
    const std::string& name = layout_.objects[index_of(shard.state)].name;
    const tiers::HostMemory memory(layout_.objects[index_of(shard.state)].size, false);
    std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
    const StateFormat::Offsets offsets = layout_.state.offsets(shard.count);
    const auto floats = [&](Bytes at) {
      return reinterpret_cast<float*>(memory.data() + at.count());
    };
    for_parameter_ranges(
        module.spec, shard.first, shard.count,
        [&](const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
          const auto fill = [&](StateArray array, float* values) {
            source_->read(parameter, array, Elements(first),
                          {values + at, static_cast<size_t>(count)});
          };
          fill(StateArray::master, floats(offsets.master));
          if (layout_.state.moments == 2) {
            fill(StateArray::moment1, floats(offsets.moment[0]));
            fill(StateArray::moment2, floats(offsets.moment[1]));
          }
        },
        [](int64_t /*at*/, int64_t /*count*/) {});
    store.write(name, memory.bytes(), true, aio::IoClass::write_back).wait();
    done_ += shard.count.count();
    progress_(done_, total_);
  }

  proto::RunState state() const {
    proto::RunState state;
    state.set_step(source_->step());
    state.set_updates(source_->step());
    state.set_next_sequence(options_.next_sequence);
    state.set_model_config_json(model::to_config_json(config_, DType::f32));
    state.set_model_folder(fs::absolute(model_folder_).lexically_normal());
    *state.mutable_layout() = describe(layout_, "adam");
    for (proto::StoredModule& module : *state.mutable_layout()->mutable_modules()) {
      module.clear_weights();
    }
    return state;
  }

  const ImportOptions& options_;
  ImportProgress progress_;
  std::string model_folder_;
  model::ModelConfig config_;
  std::unique_ptr<Source> source_;
  ModelLayout layout_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace

std::vector<std::string> import_run(const ImportOptions& options, const ImportProgress& progress) {
  return Importer(options, progress).run();
}

}  // namespace headrace::engine
