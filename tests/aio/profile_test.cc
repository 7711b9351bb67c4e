#include "aio/profile.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <fstream>
#include <sstream>

#include "aio/probe_identity.h"
#include "aio/profile_catalog.h"
#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

ProbeReport make_report() {
  ProbeReport report;
  report.path = "/data";
  report.storage.key = "model-serial-ext4";
  report.storage.file_system = "ext4";
  report.storage.model = "model \"x\"";
  report.storage.wear.unknown = "not an NVMe device";
  report.unix_seconds = 1'800'000'000;
  report.file_size = kGiB * 4;
  report.is_direct = true;
  report.points = {{.block_size = kMiB, .queue_depth = 32, .left_out = "too slow"},
                   {.block_size = kMiB * 4,
                    .queue_depth = 64,
                    .rates = {.read = 2.4e9, .write = 3.6e9, .mixed = 2.9e9},
                    .read_latency = {.p50_ms = 1, .p99_ms = 2, .p999_ms = 3, .transfers = 4},
                    .is_measured = true}};
  report.best = 1;
  report.modes = {{.mode = SubmissionMode::interrupt,
                   .rates = {.read = 2.4e9, .write = 3.6e9, .mixed = 2.9e9},
                   .left_out = {}},
                  {.mode = SubmissionMode::io_poll,
                   .rates = {},
                   .is_refused = true,
                   .left_out = "no poll queues"}};
  report.writes.rates = {3e9, 2e9};
  report.cliff = {.is_judged = true, .has_cliff = true, .at = kGiB * 3, .written = kGiB * 5};
  report.cache.kind = CacheKind::fast_reread;
  report.duplex = 1.25;
  return report;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string error_of(const std::string& bytes) {
  try {
    static_cast<void>(decode_profile(bytes, "the file"));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Profile, IsReadableWhateverTheFolderIsCalled) {
  ProbeReport report = make_report();
  report.path = "/caf\xe9/\xc3\xa9";
  report.storage.model = "\xff";
  proto::HardwareProfile profile;
  *profile.add_storage() = to_profile(report);
  const proto::HardwareProfile read = decode_profile(encode_profile(profile), "the file");
  EXPECT_EQ(read.storage(0).path(), "/caf\xef\xbf\xbd/\xc3\xa9");
  EXPECT_EQ(read.storage(0).device().model(), "\xef\xbf\xbd");
}

TEST(Profile, HoldsWhatTheReportSays) {
  const proto::StorageProfile profile = to_profile(make_report());
  EXPECT_EQ(profile.key(), "model-serial-ext4");
  EXPECT_EQ(profile.best().block_size(), 4 << 20);
  EXPECT_EQ(profile.best().queue_depth(), 64);
  EXPECT_EQ(profile.best().mixed_rate(), 2.9e9);
  EXPECT_EQ(profile.best().read_latency().p999_ms(), 3);
  EXPECT_EQ(profile.points(0).left_out(), "too slow");
  EXPECT_EQ(profile.modes(1).left_out(), "no poll queues");
  EXPECT_EQ(profile.modes(1).mode(), proto::IO_POLL);
  EXPECT_EQ(profile.cache().kind(), proto::CacheProfile::FAST_REREAD);
  EXPECT_EQ(profile.sustained_write().cliff_bytes(), int64_t{3} << 30);
  EXPECT_EQ(profile.sustained_write().interval_rates_size(), 2);
  EXPECT_EQ(profile.device().wear_percent(), -1);
  EXPECT_EQ(profile.device().spare_percent(), -1);
  EXPECT_EQ(profile.duplex().ratio(), 1.25);
}

TEST(Profile, KeepsHowWornTheDriveIs) {
  ProbeReport report = make_report();
  report.storage.wear = {.percent_used = 7,
                         .unknown = {},
                         .bytes_written = 3e13,
                         .spare_percent = 90,
                         .warnings = {"it is too hot or too cold"}};
  const proto::StorageDevice device = to_profile(report).device();
  EXPECT_EQ(device.wear_percent(), 7);
  EXPECT_EQ(device.bytes_written(), 3e13);
  EXPECT_EQ(device.spare_percent(), 90);
  ASSERT_EQ(device.warnings_size(), 1);
  EXPECT_EQ(device.warnings(0), "it is too hot or too cold");
}

TEST(Profile, JsonAndBinaryFormsAreEqual) {
  proto::HardwareProfile profile;
  *profile.add_storage() = to_profile(make_report());
  profile.mutable_machine()->set_hostname("node7");
  proto::HardwareProfile from_json;
  const std::string json = to_json(profile);
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &from_json).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(profile, from_json)) << json;
  EXPECT_THAT(json, HasSubstr("\"mixed_rate\": 2900000000"));
  const proto::HardwareProfile from_bytes = decode_profile(encode_profile(profile), "test");
  EXPECT_TRUE(MessageDifferencer::Equals(profile, from_bytes));
}

TEST(Profile, EveryFlippedBitAndEveryCutIsSeen) {
  proto::HardwareProfile profile;
  *profile.add_storage() = to_profile(make_report());
  const std::string bytes = encode_profile(profile);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(error_of(bytes.substr(0, length)), "") << length;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_NE(error_of(damaged), "") << i << " bit " << bit;
    }
  }
}

TEST(Profile, ANewerFormatIsNamed) {
  proto::ProfileFile file;
  file.set_format_version(2);
  EXPECT_THAT(error_of(file.SerializeAsString()), HasSubstr("the file has format 2"));
}

TEST(ProfileCatalog, StoresAndFinds) {
  const TestFolder folder;
  const ProfileCatalog catalog(folder.file("a/b"));
  EXPECT_FALSE(catalog.storage_by_key("model-serial-ext4"));
  proto::StorageProfile profile = to_profile(make_report());
  const std::string path = catalog.store(profile);
  EXPECT_EQ(path, folder.file("a/b/model-serial-ext4.pb"));
  ASSERT_TRUE(catalog.storage_by_key("model-serial-ext4"));
  EXPECT_TRUE(MessageDifferencer::Equals(*catalog.storage_by_key("model-serial-ext4"), profile));
  profile.mutable_best()->set_mixed_rate(1);
  catalog.store(profile);  // replaces
  EXPECT_EQ(catalog.storage_by_key("model-serial-ext4")->best().mixed_rate(), 1);

  profile.set_key(storage_key(folder.path()));
  catalog.store(profile);
  ASSERT_TRUE(catalog.storage_for(folder.path()));

  proto::HardwareProfile machine;
  machine.mutable_machine()->set_hostname("node/7");
  EXPECT_EQ(catalog.store_machine(machine), folder.file("a/b/machine-node-7.pb"));
  EXPECT_EQ(catalog.machine("node/7")->machine().hostname(), "node/7");
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("a/b"))) {
    EXPECT_THAT(entry.path().extension(), ::testing::AnyOf(".pb", ".json"));
  }
}

TEST(ProfileCatalog, DamagedAndNewerFilesAreIgnoredAndKept) {
  const TestFolder folder;
  const ProfileCatalog catalog(folder.path());
  const proto::StorageProfile profile = to_profile(make_report());
  const std::string path = catalog.store(profile);
  proto::ProfileFile newer;
  newer.set_format_version(7);
  int kept = 0;
  for (const std::string& content :
       {read_file(path).substr(0, 40), newer.SerializeAsString(), std::string("text")}) {
    write_file(path, content);
    testing::internal::CaptureStderr();
    EXPECT_FALSE(catalog.storage_by_key(profile.key()));
    catalog.store(profile);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(path));
    EXPECT_TRUE(catalog.storage_by_key(profile.key()));
    EXPECT_EQ(read_file(path + ".kept-" + std::to_string(++kept)), content);
  }
}

TEST(ProfileCatalog, StandardFolderComesFromTheEnvironment) {
  ::setenv("HEADRACE_PROFILES", "/one", 1);
  EXPECT_EQ(ProfileCatalog::standard().folder(), "/one");
  ::unsetenv("HEADRACE_PROFILES");
  ::setenv("XDG_DATA_HOME", "/two", 1);
  EXPECT_EQ(ProfileCatalog::standard().folder(), "/two/headrace/profiles");
  ::unsetenv("XDG_DATA_HOME");
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ::setenv("HOME", "/three", 1);
  EXPECT_EQ(ProfileCatalog::standard().folder(), "/three/.local/share/headrace/profiles");
  ::unsetenv("HOME");
  EXPECT_THROW(ProfileCatalog::standard(), InputError);
  ::setenv("HOME", before.c_str(), 1);
}

TEST(ProfileCatalog, AFailedWriteLeavesNothing) {
  const TestFolder folder;
  const std::string target = folder.file("folder");
  std::filesystem::create_directory(target);
  EXPECT_THROW(replace_file(target, "content"), IoError);  // the name is taken by a folder
  EXPECT_THROW(replace_file(folder.file("missing/file"), "content"), IoError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            1);
}

}  // namespace
}  // namespace headrace::aio
