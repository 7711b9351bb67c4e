// What a run's catalog holds: keys with protobuf values, among them the engine's run state.
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "engine/run_state.h"
#include "engine/state_layout.h"
#include "engine/state_reader.h"
#include "fuzz/targets.h"
#include "model/model_config.h"
#include "tests/tiers/fake_io.h"
#include "tests/tiers/support.h"
#include "tiers/catalog_records.h"
#include "tiers/extent_store.h"
#include "tiers/generations.h"

namespace headrace::fuzz {

namespace {

constexpr Bytes kFileSize{int64_t{64} << 20};

std::shared_ptr<tiers::test::FakeIo> disk() {
  static const auto io = std::make_shared<tiers::test::FakeIo>();
  return io;
}

/// Takes `length`, 16 bits little-endian, and so many bytes, as far as they are there.
std::string_view take_text(std::string_view& input) {
  size_t length = 0;
  for (size_t i = 0; i < 2 && !input.empty(); ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(input[0])) << (8 * i);
    input.remove_prefix(1);
  }
  const std::string_view text = input.substr(0, length);
  input.remove_prefix(text.size());
  return text;
}

/// A run directory with one data file, all of it a hole.
const std::string& data_folder() {
  static const std::string folder = [] {
    std::string path = scratch_folder() + "/run";
    std::filesystem::create_directories(path);
    std::ofstream(path + "/data-0").close();
    std::filesystem::resize_file(path + "/data-0", static_cast<size_t>(kFileSize.count()));
    return path;
  }();
  return folder;
}

/// A store that holds the objects "w" and "s" of 64 KiB.
tiers::ExtentStore& small_store() {
  static const std::unique_ptr<tiers::ExtentStore> store = [] {
    tiers::ExtentStoreOptions options;
    options.paths = {scratch_folder()};
    options.run_id = "small";
    options.disk_budget = kFileSize;
    options.growth_step = Bytes(1 << 20);
    auto made = tiers::ExtentStore::create(options, disk());
    const tiers::test::Buffer value(1 << 16);
    tiers::test::fill_pattern(value.bytes(), 1);
    for (const char* name : {"w", "s"}) {
      made->write(name, value.bytes(), true, aio::IoClass::write_back).wait();
    }
    made->commit(1, {});
    return made;
  }();
  return *store;
}

}  // namespace

void read_catalog(std::string_view input) {
  tiers::ContentsReader reader("input");
  while (!input.empty()) {
    const std::string_view key = take_text(input);
    reader.add(key, take_text(input));
  }
  const tiers::CatalogContents contents = reader.finish();
  tiers::describe_generations(contents);
  tiers::ExtentAllocator::Options options;
  options.directories = {data_folder()};
  options.weights = {1.0};
  options.disk_budget = kFileSize;
  options.growth_step = Bytes(1 << 20);
  tiers::ExtentAllocator allocator(options, disk());
  allocator.open_existing();
  tiers::load_generations(contents, allocator);
}

void read_run_state(std::string_view input) {
  const proto::RunState state =
      engine::parse_run_state({{engine::kRunStateKey, std::string(input)}}, "input");
  engine::StateReader reader(small_store(), std::nullopt, state.layout());
  std::array<float, 8> values{};
  for (const proto::StoredModule& module : state.layout().modules()) {
    for (const std::string& object : {module.weights(), std::string("s"), std::string("w")}) {
      for (const int64_t offset : {0, 4096}) {
        tiers::Damage damage;
        damage.object = object;
        damage.value_offset = offset;
        damage.extent.length = Bytes(4096);
        engine::describe_damage(damage, state.layout());
      }
    }
    for (const proto::StoredParameter& parameter : module.parameters()) {
      for (const auto array : {engine::StateArray::master, engine::StateArray::moment1,
                               engine::StateArray::moment2, engine::StateArray::weights}) {
        const auto count = std::min<int64_t>(parameter.count(), values.size());
        if (reader.has(array)) {
          reader.read(parameter.name(), array, Elements(parameter.count() - count),
                      std::span(values).first(static_cast<size_t>(count)));
        }
      }
    }
  }
  model::parse_model_config(state.model_config_json(), "input");
}

}  // namespace headrace::fuzz
