#include "engine/planner/data_sheet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "aio/profile.h"
#include "base/embedded_file.h"
#include "base/error.h"
#include "engine/planner/hardware.h"
#include "model/checkpoint_file.h"
#include "model/checkpoint_json.h"
#include "model/config_reader.h"

namespace headrace {
std::span<const EmbeddedFile> embedded_hardware();
}  // namespace headrace

namespace headrace::engine {

namespace {

constexpr double kMostPerSecond = 1e18;
constexpr int64_t kMostBytes = int64_t{1} << 60;

void check_keys(const nlohmann::json& object, const std::vector<const char*>& known,
                const std::string& source) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw InputError(fmt::format("{}: unknown key {}; a data sheet of this kind has {}", source,
                                   model::quote_name(key), fmt::join(known, ", ")));
    }
  }
}

void read_gpu(const nlohmann::json& object, const model::ConfigReader& reader,
              const std::string& source, DataSheet& sheet) {
  check_keys(object,
             {"kind", "name", "memory_bytes", "memory_bytes_per_second", "link_bytes_per_second",
              "flops_per_second", "source", "note"},
             source);
  sheet.kind = DataSheet::Kind::gpu;
  sheet.memory = Bytes(reader.integer("memory_bytes", 1, kMostBytes));
  sheet.memory_rate = reader.number("memory_bytes_per_second", 0, kMostPerSecond);
  sheet.link_rate = reader.number("link_bytes_per_second", 0, kMostPerSecond);
  const auto flops = reader.object("flops_per_second");
  if (!flops) {
    reader.fail("flops_per_second", "missing; it holds bf16, fp16 and fp32");
  }
  sheet.flops_bf16 = flops->number("bf16", 0, kMostPerSecond);
  sheet.flops_f16 = flops->number("fp16", 0, kMostPerSecond);
  sheet.flops_f32 = flops->number("fp32", 0, kMostPerSecond);
  sheet.flops_fp8 = flops->number_or("fp8", 0, kMostPerSecond, 0);
}

void read_drive(const nlohmann::json& object, const model::ConfigReader& reader,
                const std::string& source, DataSheet& sheet) {
  check_keys(object,
             {"kind", "name", "capacity_bytes", "read_bytes_per_second", "write_bytes_per_second",
              "endurance_bytes", "source", "note"},
             source);
  sheet.kind = DataSheet::Kind::drive;
  sheet.capacity = Bytes(reader.integer("capacity_bytes", 1, kMostBytes));
  sheet.read_rate = reader.number("read_bytes_per_second", 0, kMostPerSecond);
  sheet.write_rate = reader.number("write_bytes_per_second", 0, kMostPerSecond);
  sheet.endurance = Bytes(reader.integer_or("endurance_bytes", 1, kMostBytes, 0));
}

}  // namespace

DataSheet parse_data_sheet(const std::string& json, const std::string& source) {
  const auto object = model::parse_json_object<nlohmann::json>(json, source);
  const model::ConfigReader reader(object, source);
  DataSheet sheet;
  sheet.name = reader.text("name");
  sheet.note = reader.text_or("note", "");
  const std::string kind = reader.text("kind");
  if (kind == "gpu") {
    read_gpu(object, reader, source, sheet);
  } else if (kind == "drive") {
    read_drive(object, reader, source, sheet);
  } else if (kind == "host") {
    check_keys(object, {"kind", "name", "memory_bytes_per_second", "source", "note"}, source);
    sheet.kind = DataSheet::Kind::host;
    sheet.memory_rate = reader.number("memory_bytes_per_second", 0, kMostPerSecond);
  } else {
    reader.fail("kind", "it can be gpu, drive or host");
  }
  return sheet;
}

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_hardware()) {
    names.emplace_back(file.stem());
  }
  return names;
}

DataSheet find_data_sheet(const std::string& name_or_file) {
  for (const EmbeddedFile& file : embedded_hardware()) {
    if (name_or_file == file.stem()) {
      return parse_data_sheet(std::string(file.text),
                              fmt::format("configs/hardware/{}", file.name));
    }
  }
  std::error_code error;
  if (std::filesystem::is_regular_file(name_or_file, error)) {
    return parse_data_sheet(model::read_text_file(name_or_file, kMiB), name_or_file);
  }
  throw InputError(fmt::format(
      "--hardware {}: there is no data sheet of that name and no such file; names are {}",
      name_or_file, fmt::join(hardware_names(), ", ")));
}

proto::HardwareProfile load_profile(const std::string& path) {
  return aio::decode_profile(model::read_text_file(path, kMiB * 16), path);
}

}  // namespace headrace::engine
