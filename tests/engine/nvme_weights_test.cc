#include "engine/nvme_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "aio/io.h"
#include "aio/probe.h"
#include "aio/probe_identity.h"
#include "aio/probe_storage.h"
#include "engine/config/resolve.h"
#include "engine/run_setup.h"
#include "proto/config_parser.h"
#include "tests/support/temporary_folder.h"
#include "tiers/extent_store.h"

namespace headrace::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kMemory = "/dev/shm";

std::string two_file_systems_missing(const std::string& folder) {
  if (!std::filesystem::exists(kMemory)) {
    return "there is no /dev/shm";
  }
  return aio::storage_key(folder) == aio::storage_key(kMemory)
             ? "the folder of tests and /dev/shm are one file system"
             : "";
}

void store_fake(const aio::ProfileCatalog& catalog, const std::string& path, double mixed_rate,
                double read_rate = 0, double write_rate = 0) {
  proto::StorageProfile profile;
  profile.set_key(aio::storage_key(path));
  profile.mutable_best()->set_read_rate(read_rate);
  profile.mutable_best()->set_write_rate(write_rate);
  profile.mutable_best()->set_mixed_rate(mixed_rate);
  catalog.store(profile);
}

/// Values written to a store over both paths: bytes in the data files of each.
std::vector<int64_t> spread(const std::vector<std::string>& paths,
                            const std::vector<double>& weights) {
  constexpr int64_t kValue = int64_t{4} << 20;
  constexpr int kValues = 16;
  std::shared_ptr<aio::IoEngine> io = aio::IoEngine::create({});
  tiers::ExtentStoreOptions options;
  options.paths = paths;
  options.weights = weights;
  options.disk_budget = kMiB * 512;
  options.growth_step = kMiB;
  const auto store = tiers::ExtentStore::create(options, io);
  aio::HugeMemory memory{Bytes(kValue)};
  for (int i = 0; i < kValues; ++i) {
    store
        ->write("value" + std::to_string(i), {memory.data(), static_cast<size_t>(kValue)}, true,
                aio::IoClass::write_back)
        .wait();
  }
  std::vector<int64_t> bytes;
  for (const std::string& directory : store->directories()) {
    int64_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const bool is_data = entry.path().filename().string().starts_with("data-");
      sum += is_data ? static_cast<int64_t>(entry.file_size()) : 0;
    }
    bytes.push_back(sum);
  }
  return bytes;
}

TEST(NvmeWeights, DataIsSpreadInProportionToTheStoredRates) {
  const test::TemporaryFolder folder;
  if (const std::string missing = two_file_systems_missing(folder.path()); !missing.empty()) {
    GTEST_SKIP() << missing;
  }
  const aio::ProfileCatalog catalog(folder.path() + "/profiles");
  store_fake(catalog, folder.path(), 3e9);
  store_fake(catalog, kMemory, 1e9);
  const std::vector<std::string> paths = {folder.path(), kMemory};
  const std::vector<double> weights = nvme_weights(paths, catalog);
  ASSERT_THAT(weights, ElementsAre(3e9, 1e9));
  const std::vector<int64_t> bytes = spread(paths, weights);
  const double share = static_cast<double>(bytes[0]) / static_cast<double>(bytes[0] + bytes[1]);
  EXPECT_NEAR(share, 0.75, 0.05) << bytes[0] << " and " << bytes[1];
}

TEST(NvmeWeights, RunSetupTakesThemFromTheStandardCatalog) {
  const test::TemporaryFolder folder;
  if (const std::string missing = two_file_systems_missing(folder.path()); !missing.empty()) {
    GTEST_SKIP() << missing;
  }
  ::setenv("HEADRACE_PROFILES", (folder.path() + "/profiles").c_str(), 1);
  Settings settings;
  settings.offload.nvme_paths = {folder.path(), kMemory};
  const aio::ProfileCatalog catalog(folder.path() + "/profiles");
  store_fake(catalog, folder.path(), 2e9);
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(make_engine_options(settings, 64).nvme_weights, IsEmpty());
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("headrace probe"));
  EXPECT_THAT(told, HasSubstr("/dev/shm has no profile"));
  store_fake(catalog, kMemory, 8e9);
  EXPECT_THAT(make_engine_options(settings, 64).nvme_weights, ElementsAre(2e9, 8e9));
  settings.offload.nvme_paths = {folder.path()};
  EXPECT_THAT(make_engine_options(settings, 64).nvme_weights, IsEmpty());
  ::unsetenv("HEADRACE_PROFILES");
}

TEST(NvmeRates, OfAProfileWithBothDirectionsAloneAndTogether) {
  const test::TemporaryFolder folder;
  ::setenv("HEADRACE_PROFILES", (folder.path() + "/profiles").c_str(), 1);
  Settings settings;
  settings.offload.nvme_paths = {folder.path()};
  store_fake(aio::ProfileCatalog(folder.path() + "/profiles"), folder.path(), 3e9, 2.5e9, 2e9);
  const auto rates = [&] { return make_engine_options(settings, 64).memory.rates; };
  EXPECT_EQ(rates().nvme_read, 2.5e9);
  EXPECT_EQ(rates().nvme_write, 2e9);
  EXPECT_EQ(rates().nvme_both, 3e9);
  settings.aio.limit = Bytes(2'200'000'000);
  EXPECT_EQ(rates().nvme_read, 2.2e9);
  EXPECT_EQ(rates().nvme_write, 2e9);
  EXPECT_EQ(rates().nvme_both, 2.2e9);
  settings.aio.limit = Bytes(1'000'000'000);
  settings.aio.read_limit = Bytes(700'000'000);
  EXPECT_EQ(rates().nvme_read, 0.7e9);
  EXPECT_EQ(rates().nvme_write, 1e9);
  EXPECT_EQ(rates().nvme_both, 1e9);
  ::unsetenv("HEADRACE_PROFILES");
}

TEST(NvmeRates, RunSetupTakesThemFromTheProfileAndTheLimits) {
  const test::TemporaryFolder folder;
  ::setenv("HEADRACE_PROFILES", (folder.path() + "/profiles").c_str(), 1);
  Settings settings;
  settings.offload.nvme_paths = {folder.path()};
  const scheduler::Rates usual;
  EXPECT_EQ(make_engine_options(settings, 64).memory.rates.nvme_read, usual.nvme_read);
  store_fake(aio::ProfileCatalog(folder.path() + "/profiles"), folder.path(), 3e9);
  settings.aio.write_limit = Bytes(500'000'000);
  settings.link_limit = Bytes(7'000'000'000);
  const scheduler::Rates rates = make_engine_options(settings, 64).memory.rates;
  EXPECT_EQ(rates.nvme_read, 1.5e9);
  EXPECT_EQ(rates.nvme_write, 5e8);
  EXPECT_EQ(rates.host_to_device, 7e9);
  EXPECT_EQ(rates.device_to_host, 7e9);
  EXPECT_EQ(rates.nvme_both, 0);
  ::unsetenv("HEADRACE_PROFILES");
}

TEST(NvmeWeights, PathsThatDoNotExistGetEqualShares) {
  const test::TemporaryFolder folder;
  const aio::ProfileCatalog catalog(folder.path());
  EXPECT_THAT(nvme_weights({"/no/such/a", "/no/such/b"}, catalog), IsEmpty());
}

TEST(ProbeAioBlock, IsAcceptedAsItIs) {
  aio::ProbeReport report;
  report.points = {{.block_size = kMiB * 4, .queue_depth = 96, .is_measured = true}};
  const proto::ParsedConfig parsed = proto::parse_config(aio::aio_block(report), "probe");
  EXPECT_THAT(parsed.notes, IsEmpty());
  ResolveContext context;
  context.micro_batch = 1;
  const Resolution resolution = resolve(parsed.config, context);
  EXPECT_EQ(resolution.settings.aio.block_size, kMiB * 4);
  EXPECT_EQ(resolution.settings.aio.requests_in_flight(), 96);
}

}  // namespace
}  // namespace headrace::engine
