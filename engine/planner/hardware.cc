#include "engine/planner/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "base/process.h"
#include "base/utc.h"
#include "engine/nvme_weights.h"
#include "engine/planner/data_sheet.h"
#include "engine/step_trace.h"
#include "tiers/topology.h"

namespace headrace::engine {

namespace {

// Of a GPU without a data sheet, for the first step: what an older card reaches over PCIe 4.
constexpr double kGpuFlops = 100e12;
constexpr double kGpuFlopsF32 = 20e12;
constexpr double kGpuMemoryRate = 800e9;
constexpr double kGpuLinkRate = 20e9;

std::string measured(int64_t unix_seconds) {
  return utc_text(unix_seconds, "measured %Y-%m-%d");
}

Hardware assumed_hardware() {
  const WorkRates work;
  const scheduler::Rates rates;
  const auto assumed = [](double value) { return Rate{value, "assumed"}; };
  Hardware hardware;
  hardware.compute = assumed(work.flops);
  hardware.cpu_memory = assumed(work.cpu_bytes);
  hardware.device_memory = assumed(work.device_bytes);
  hardware.host_to_device = assumed(rates.host_to_device);
  hardware.device_to_host = assumed(rates.device_to_host);
  hardware.nvme_read = assumed(rates.nvme_read);
  hardware.nvme_write = assumed(rates.nvme_write);
  return hardware;
}

void set(Rate& rate, double value, const std::string& source) {
  if (value > 0) {
    rate = {value, source};
  }
}

/// Bytes of memory per second with the optimizer state that is most like this training's; 0 where
/// it was not measured.
double optimizer_rate(const proto::MachineProfile& machine, const Settings& settings) {
  const DType moments = settings.state.moment_dtype;
  const std::string state = moments == DType::u8           ? "bf16, split master, 8-bit moments"
                            : settings.dtype == DType::f32 ? "fp32"
                            : moments == DType::bf16       ? "bf16, split master, bf16 moments"
                                                           : "bf16, split master, fp32 moments";
  for (const proto::OptimizerRate& rate : machine.optimizer()) {
    if (rate.state() == state) {
      return rate.elements_per_second() * static_cast<double>(rate.bytes_per_element());
    }
  }
  return 0;
}

void use_machine(const proto::MachineProfile& machine, const Settings& settings,
                 Hardware& hardware) {
  const std::string source = measured(machine.measured_unix_seconds());
  const std::string dtype = settings.dtype == DType::f32 ? "fp32" : "bf16";
  set(hardware.cpu_memory, optimizer_rate(machine, settings), source);
  if (hardware.has_gpu) {
    return;  // the rest was measured on the CPU
  }
  for (const proto::MatmulRate& matmul : machine.matmul()) {
    if (matmul.dtype() == dtype) {
      set(hardware.compute, matmul.flops_per_second(), source + " on " + machine.device());
    }
  }
  set(hardware.host_to_device, machine.host_to_device_rate(), source);
  set(hardware.device_to_host, machine.device_to_host_rate(), source);
}

void use_storage(const NvmeRates& rates, Hardware& hardware) {
  const std::string source = measured(rates.measured_unix_seconds);
  if (rates.read > 0 && rates.write > 0) {
    set(hardware.nvme_read, rates.read, source);
    set(hardware.nvme_write, rates.write, source);
    set(hardware.nvme_both, rates.mixed, source);
    return;
  }
  set(hardware.nvme_read, rates.mixed / 2, source + ", half of the mixed rate");
  set(hardware.nvme_write, rates.mixed / 2, source + ", half of the mixed rate");
}

void use_stored_drives(const std::vector<std::string>& paths, const aio::ProfileCatalog& catalog,
                       Hardware& hardware) {
  if (const auto rates = nvme_rates(paths, catalog)) {
    use_storage(*rates, hardware);
  }
}

/// A figure of a data sheet, of which a part is taken.
Rate part_of(double value, double share, const char* unit, const std::string& name) {
  return {value * share,
          fmt::format("{:g} of {} ({}, data sheet)", share, format_rate(value, unit), name)};
}

/// In lower case.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char each : name) {
    const auto character = static_cast<unsigned char>(each);
    if (std::isalnum(character) != 0) {
      words.back() += static_cast<char>(std::tolower(character));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

/// Of matrix products. Every card with tf32 multiplies it half as fast as bf16.
double flops_of(const DataSheet& sheet, const Settings& settings) {
  switch (settings.dtype) {
    case DType::f32:
      return settings.tf32 ? sheet.flops_bf16 / 2 : sheet.flops_f32;
    case DType::f16:
      return sheet.flops_f16;
    default:
      return sheet.flops_bf16;
  }
}

void use_gpu(const DataSheet& sheet, const Settings& settings, Hardware& hardware) {
  const double flops = flops_of(sheet, settings);
  hardware.has_gpu = true;
  if (settings.fp8_forward && sheet.flops_fp8 <= 0) {
    throw InputError(fmt::format(
        "headrace.lossy_fp8_forward: {} has no products in fp8 (flops_per_second.fp8 of "
        "its data sheet); leave the key out, or name another card",
        sheet.name));
  }
  hardware.compute_fp8 =
      sheet.flops_fp8 > 0 ? part_of(sheet.flops_fp8, kComputeShare, "FLOP/s", sheet.name) : Rate();
  hardware.compute = part_of(flops, kComputeShare, "FLOP/s", sheet.name);
  hardware.device_memory = part_of(sheet.memory_rate, kDeviceMemoryShare, "B/s", sheet.name);
  hardware.host_to_device = part_of(sheet.link_rate, kLinkShare, "B/s", sheet.name);
  hardware.device_to_host = hardware.host_to_device;
}

/// The data sheet of the card that CUDA calls `name`: "NVIDIA A100 80GB PCIe" has all words of
/// a100-80gb.
std::optional<DataSheet> data_sheet_of(const std::string& name) {
  const std::vector<std::string> words = words_of(name);
  const auto has = [&](const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (has("laptop") || has("mig")) {
    return std::nullopt;  // much less than the card of that name
  }
  for (const std::string& known : hardware_names()) {
    const std::vector<std::string> needed = words_of(known);
    if (!std::all_of(needed.begin(), needed.end(), has)) {
      continue;
    }
    const DataSheet sheet = find_data_sheet(known);
    if (sheet.kind == DataSheet::Kind::gpu) {
      return sheet;
    }
  }
  return std::nullopt;
}

void use_found_gpu(const std::string& name, const Settings& settings, Hardware& hardware) {
  if (const std::optional<DataSheet> sheet = data_sheet_of(name)) {
    use_gpu(*sheet, settings, hardware);
    return;
  }
  const auto assumed = [](double value) { return Rate{value, "assumed for a GPU"}; };
  hardware.has_gpu = true;
  const double of_f32 = settings.tf32 ? kGpuFlops / 2 : kGpuFlopsF32;
  hardware.compute = assumed(settings.dtype == DType::f32 ? of_f32 : kGpuFlops);
  hardware.device_memory = assumed(kGpuMemoryRate);
  hardware.host_to_device = hardware.device_to_host = assumed(kGpuLinkRate);
}

/// Data goes over all drives in proportion to what they reach.
void use_drives(const std::vector<DataSheet>& drives, Hardware& hardware) {
  double read = 0;
  double write = 0;
  bool has_endurance = true;
  hardware.drives = static_cast<int>(drives.size());
  hardware.drive_size = hardware.endurance = Bytes(0);
  for (const DataSheet& drive : drives) {
    read += drive.read_rate;
    write += drive.write_rate;
    hardware.drive_size += drive.capacity;
    hardware.endurance += drive.endurance;
    has_endurance = has_endurance && drive.endurance.count() > 0;
  }
  hardware.endurance = has_endurance ? hardware.endurance : Bytes(0);
  const std::string name =
      drives.size() == 1 ? drives.front().name : fmt::format("{} drives", drives.size());
  hardware.nvme_read = part_of(read, kDriveShare, "B/s", name);
  hardware.nvme_write = part_of(write, kDriveShare, "B/s", name);
  hardware.nvme_both = {};
}

void use_profile(const proto::HardwareProfile& profile, const Settings& settings,
                 Hardware& hardware) {
  if (profile.has_machine()) {
    use_machine(profile.machine(), settings, hardware);
  }
  NvmeRates rates;
  for (const proto::StorageProfile& storage : profile.storage()) {
    rates.add(storage);
  }
  if (rates.mixed > 0) {
    hardware.drives = profile.storage_size();
    hardware.drive_size = hardware.endurance = Bytes(0);
    use_storage(rates, hardware);
  }
}

/// Of what --hardware takes: not a data sheet, but what a probe has stored.
bool is_profile(const std::string& name) {
  return std::filesystem::path(name).extension() == ".pb";
}

Hardware assumed_on(const std::string& gpu, const Settings& settings) {
  Hardware hardware = assumed_hardware();
  if (!gpu.empty()) {
    use_found_gpu(gpu, settings, hardware);
  }
  return hardware;
}

double per_second(const std::optional<Bytes>& limit) {
  return static_cast<double>(limit.value_or(Bytes(0)).count());
}

}  // namespace

std::string format_rate(double per_second, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (per_second >= 999.5 && prefix + 1 < std::size(kPrefixes)) {
    per_second /= 1000;
    ++prefix;
  }
  return fmt::format("{:.3g} {}{}", per_second, kPrefixes[prefix], unit);
}

Hardware known_hardware(const Settings& settings, const aio::ProfileCatalog& catalog,
                        const std::string& gpu) {
  Hardware hardware = assumed_on(gpu, settings);
  if (const auto profile = catalog.machine(host_name())) {
    use_machine(profile->machine(), settings, hardware);
  }
  use_stored_drives(settings.offload.nvme_paths, catalog, hardware);
  hardware.drive_size = tiers::disk_capacity(settings.offload.nvme_paths);
  return hardware;
}

Hardware known_hardware(const Settings& settings, const std::string& gpu) {
  try {
    return known_hardware(settings, aio::ProfileCatalog::standard(), gpu);
  } catch (const InputError&) {  // no home folder, no profiles
    return assumed_on(gpu, settings);
  }
}

bool names_gpu(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return !is_profile(name) && find_data_sheet(name).kind == DataSheet::Kind::gpu;
  });
}

void add_named_hardware(const std::vector<std::string>& names, const Settings& settings,
                        Hardware& hardware) {
  std::vector<DataSheet> drives;
  std::string gpu;
  std::string host;
  const auto once = [](std::string& before, const std::string& name, const char* kind) {
    if (!std::exchange(before, name).empty()) {
      throw UsageError(fmt::format("--hardware names two {}s; a plan is for one", kind));
    }
  };
  for (const std::string& name : names) {
    if (is_profile(name)) {
      use_profile(load_profile(name), settings, hardware);
      continue;
    }
    const DataSheet sheet = find_data_sheet(name);
    if (!sheet.note.empty()) {
      const std::string note = sheet.name + ": " + sheet.note;
      if (std::find(hardware.notes.begin(), hardware.notes.end(), note) == hardware.notes.end()) {
        hardware.notes.push_back(note);
      }
    }
    switch (sheet.kind) {
      case DataSheet::Kind::gpu:
        once(gpu, name, "GPU");
        use_gpu(sheet, settings, hardware);
        hardware.device_size = sheet.memory;
        break;
      case DataSheet::Kind::host:
        once(host, name, "host");
        hardware.cpu_memory = part_of(sheet.memory_rate, kHostMemoryShare, "B/s", sheet.name);
        break;
      case DataSheet::Kind::drive:
        drives.push_back(sheet);
        use_drives(drives, hardware);
        break;
    }
  }
}

void use_hardware(const Hardware& hardware, const Settings& settings, EngineOptions& options) {
  options.work.flops = hardware.compute.per_second;
  options.work.fp8_flops = hardware.compute_fp8.per_second;
  options.work.cpu_bytes = hardware.cpu_memory.per_second;
  options.work.device_bytes = hardware.device_memory.per_second;
  scheduler::Rates& rates = options.memory.rates;
  const auto limited = [](double rate, const std::optional<Bytes>& most) {
    return most ? std::min(rate, per_second(most)) : rate;
  };
  const AioSettings& aio = settings.aio;
  rates.nvme_read = limited(limited(hardware.nvme_read.per_second, aio.read_limit), aio.limit);
  rates.nvme_write = limited(limited(hardware.nvme_write.per_second, aio.write_limit), aio.limit);
  if (rates.nvme_read < hardware.nvme_read.per_second) {
    rates.nvme_side_by_side = Bytes(0);  // a limit lets one part through after the other
  }
  rates.nvme_both = hardware.nvme_both.per_second;
  if (aio.limit) {
    rates.nvme_both =
        rates.nvme_both > 0 ? limited(rates.nvme_both, aio.limit) : per_second(aio.limit);
  }
  rates.host_to_device = limited(hardware.host_to_device.per_second, settings.link_limit);
  rates.device_to_host = limited(hardware.device_to_host.per_second, settings.link_limit);
}

}  // namespace headrace::engine
