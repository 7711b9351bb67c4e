#include "engine/planner/hardware.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/process.h"
#include "engine/planner/data_sheet.h"
#include "engine/step_trace.h"
#include "support/temporary_folder.h"

namespace headrace::engine {
namespace {

Settings settings_of(DType dtype) {
  Settings settings;
  settings.dtype = dtype;
  return settings;
}

Hardware assumed(const Settings& settings) {
  const test::TemporaryFolder empty;
  return known_hardware(settings, aio::ProfileCatalog(empty.path()));
}

TEST(Hardware, AssumesWhatARunAssumesUntilItHasMeasured) {
  const Hardware hardware = assumed(settings_of(DType::bf16));
  EngineOptions options;
  const WorkRates work = options.work;
  const scheduler::Rates rates = options.memory.rates;
  options.work = {};
  use_hardware(hardware, settings_of(DType::bf16), options);
  EXPECT_EQ(options.work.flops, work.flops);
  EXPECT_EQ(options.work.cpu_bytes, work.cpu_bytes);
  EXPECT_EQ(options.memory.rates, rates);
  EXPECT_EQ(hardware.nvme_read.source, "assumed");
}

TEST(Hardware, LimitsHoldWhateverTheHardwareReaches) {
  Settings settings = settings_of(DType::bf16);
  settings.aio.read_limit = Bytes(1'000'000'000);
  settings.link_limit = Bytes(2'000'000'000);
  Hardware hardware = assumed(settings);
  add_named_hardware({"rtx-4090", "990-pro-2tb"}, settings, hardware);
  EngineOptions options;
  use_hardware(hardware, settings, options);
  EXPECT_EQ(options.memory.rates.nvme_read, 1e9);
  EXPECT_EQ(options.memory.rates.host_to_device, 2e9);
  EXPECT_EQ(options.memory.rates.nvme_write, kDriveShare * 6.9e9);
  EXPECT_EQ(options.memory.rates.nvme_side_by_side, Bytes(0)) << "a limit serves in turn";
  settings.aio.read_limit = Bytes(1'000'000'000'000);
  EngineOptions unlimited;
  use_hardware(hardware, settings, unlimited);
  EXPECT_EQ(unlimited.memory.rates.nvme_side_by_side, scheduler::Rates().nvme_side_by_side);
}

TEST(Hardware, EveryDataSheetCanBeUsed) {
  for (const std::string& name : hardware_names()) {
    Hardware hardware = assumed(settings_of(DType::bf16));
    add_named_hardware({name}, settings_of(DType::bf16), hardware);
    const DataSheet sheet = find_data_sheet(name);
    switch (sheet.kind) {
      case DataSheet::Kind::gpu:
        EXPECT_EQ(hardware.device_size, sheet.memory);
        EXPECT_EQ(hardware.compute.per_second, kComputeShare * sheet.flops_bf16);
        EXPECT_GT(sheet.flops_bf16, sheet.flops_f32);
        EXPECT_TRUE(sheet.flops_fp8 == 0 || sheet.flops_fp8 >= 1.9 * sheet.flops_bf16);
        EXPECT_GT(sheet.memory_rate, sheet.link_rate);
        break;
      case DataSheet::Kind::host:
        EXPECT_EQ(hardware.cpu_memory.per_second, kHostMemoryShare * sheet.memory_rate);
        break;
      case DataSheet::Kind::drive:
        EXPECT_EQ(hardware.drive_size, sheet.capacity);
        EXPECT_EQ(hardware.nvme_read.per_second, kDriveShare * sheet.read_rate);
        EXPECT_GE(sheet.read_rate, sheet.write_rate);
        // No drive is rated for less than a fifth of itself a day for five years.
        EXPECT_GT(hardware.endurance.count(), sheet.capacity.count() * 365);
        break;
    }
  }
}

TEST(Hardware, TheDtypeChoosesTheRateOfACard) {
  Hardware hardware;
  add_named_hardware({"rtx-4090"}, settings_of(DType::f32), hardware);
  EXPECT_EQ(hardware.compute.per_second, kComputeShare * 82.6e12);
}

TEST(Hardware, OnlyCardsWithFp8ComputeInIt) {
  Settings settings = settings_of(DType::bf16);
  settings.fp8_forward = true;
  Hardware ada;
  add_named_hardware({"rtx-4090"}, settings, ada);
  EXPECT_EQ(ada.compute_fp8.per_second, kComputeShare * 330.3e12);
  Hardware ampere;
  EXPECT_THROW(add_named_hardware({"a100-80gb"}, settings, ampere), InputError);
  EngineOptions options;
  use_hardware(ada, settings, options);
  EXPECT_EQ(options.work.fp8_flops, ada.compute_fp8.per_second);
}

TEST(Hardware, DrivesAddUp) {
  Hardware hardware;
  add_named_hardware({"990-pro-2tb", "990-pro-2tb", "pm1733-3.84tb"}, settings_of(DType::bf16),
                     hardware);
  EXPECT_EQ(hardware.drives, 3);
  EXPECT_EQ(hardware.drive_size.count(), 7'840'000'000'000);
  EXPECT_EQ(hardware.nvme_read.per_second, kDriveShare * (2 * 7.45e9 + 6.4e9));
  EXPECT_EQ(hardware.notes.size(), 1U) << "said once";
}

TEST(Hardware, OneMachineHasOneOfTheOthers) {
  Hardware hardware;
  EXPECT_THROW(add_named_hardware({"rtx-4090", "h100"}, settings_of(DType::bf16), hardware),
               UsageError);
}

proto::HardwareProfile profile_of_machine() {
  proto::HardwareProfile profile;
  proto::MachineProfile& machine = *profile.mutable_machine();
  machine.set_hostname(host_name());
  machine.set_measured_unix_seconds(86400);
  machine.set_device("cpu");
  proto::MatmulRate& matmul = *machine.add_matmul();
  matmul.set_dtype("bf16");
  matmul.set_flops_per_second(2e11);
  proto::OptimizerRate& optimizer = *machine.add_optimizer();
  optimizer.set_state("bf16, split master, fp32 moments");
  optimizer.set_elements_per_second(1e9);
  optimizer.set_bytes_per_element(26);
  machine.set_host_to_device_rate(5e9);
  return profile;
}

TEST(Hardware, WhatAProbeHasStoredIsUsedWithItsDate) {
  const test::TemporaryFolder folder;
  const aio::ProfileCatalog catalog(folder.path());
  const std::string path = catalog.store_machine(profile_of_machine());
  Hardware elsewhere = assumed(settings_of(DType::bf16));
  add_named_hardware({path}, settings_of(DType::bf16), elsewhere);
  for (const Hardware& hardware : {known_hardware(settings_of(DType::bf16), catalog), elsewhere}) {
    EXPECT_EQ(hardware.compute.per_second, 2e11);
    EXPECT_EQ(hardware.compute.source, "measured 1970-01-02 on cpu");
    EXPECT_EQ(hardware.host_to_device.per_second, 5e9);
    EXPECT_EQ(hardware.device_to_host.source, "assumed") << "was not measured";
    EXPECT_EQ(hardware.cpu_memory.per_second, 26e9);
  }
}

TEST(Hardware, AGpuIsNeverTakenForTheCpu) {
  const test::TemporaryFolder folder;
  const aio::ProfileCatalog catalog(folder.path());
  const std::string path = catalog.store_machine(profile_of_machine());
  const Settings settings = settings_of(DType::bf16);
  const Hardware known = known_hardware(settings, catalog, "NVIDIA H200");
  EXPECT_EQ(known.compute.per_second, kComputeShare * 989e12);
  EXPECT_EQ(known.host_to_device.per_second, kLinkShare * 63e9);
  EXPECT_NE(known.device_memory.source.find("data sheet"), std::string::npos);
  EXPECT_FALSE(known.device_size) << "what is free there decides";
  EXPECT_EQ(known.cpu_memory.per_second, 26e9) << "the CPU still updates";
  Hardware unknown = known_hardware(settings, catalog, "NVIDIA GeForce RTX 4090 Laptop GPU");
  add_named_hardware({path}, settings, unknown);
  for (const Rate& rate :
       {unknown.compute, unknown.device_memory, unknown.host_to_device, unknown.device_to_host}) {
    EXPECT_EQ(rate.source, "assumed for a GPU");
    EXPECT_GT(rate.per_second, 1e10);
  }
}

TEST(Hardware, Tf32MultipliesHalfAsFastAsBf16) {
  const test::TemporaryFolder folder;
  const aio::ProfileCatalog empty(folder.path());
  Settings settings = settings_of(DType::f32);
  const double exact = known_hardware(settings, empty, "NVIDIA H200").compute.per_second;
  settings.tf32 = true;
  const double rounded = known_hardware(settings, empty, "NVIDIA H200").compute.per_second;
  EXPECT_EQ(rounded, kComputeShare * 989e12 / 2);
  EXPECT_GT(rounded, exact);
}

TEST(Hardware, CardsAreKnownByTheNamesThatCudaGivesThem) {
  const Settings settings = settings_of(DType::bf16);
  const test::TemporaryFolder folder;
  const auto memory_rate = [&](const char* name) {
    const aio::ProfileCatalog empty(folder.path());
    return known_hardware(settings, empty, name).device_memory.per_second;
  };
  EXPECT_EQ(memory_rate("NVIDIA A100-PCIE-40GB"), kDeviceMemoryShare * 1555e9);
  EXPECT_EQ(memory_rate("NVIDIA A100 80GB PCIe"), kDeviceMemoryShare * 1935e9);
  EXPECT_EQ(memory_rate("NVIDIA GeForce RTX 4090"), kDeviceMemoryShare * 1008e9);
  EXPECT_EQ(memory_rate("NVIDIA H200 MIG 1g.18gb"), memory_rate("NVIDIA GH200 480GB"));
}

TEST(DataSheet, RefusesWhatItDoesNotKnow) {
  const auto refuses = [](const std::string& json, const std::string& words) {
    try {
      parse_data_sheet(json, "sheet.json");
      ADD_FAILURE() << json;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("sheet.json"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refuses(R"({"kind": "tape", "name": "x"})", "gpu, drive or host");
  refuses(R"({"kind": "host", "name": "x"})", "memory_bytes_per_second");
  refuses(R"({"kind": "host", "name": "x", "memory_bytes_per_second": -1})",
          "memory_bytes_per_second");
  refuses(R"({"kind": "host", "name": "x", "memory_bytes_per_second": 1, "memory": 2})",
          "\"memory\"");
  refuses("[]", "");
}

TEST(FormatRate, IsDecimal) {
  EXPECT_EQ(format_rate(7.45e9, "B/s"), "7.45 GB/s");
  EXPECT_EQ(format_rate(999.6e9, "FLOP/s"), "1 TFLOP/s");
  EXPECT_EQ(format_rate(0, "B/s"), "0 B/s");
}

}  // namespace
}  // namespace headrace::engine
