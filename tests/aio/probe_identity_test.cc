#include "aio/probe_identity.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>

#include "aio/probe_storage.h"
#include "tests/aio/test_disk.h"

namespace headrace::aio {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

/// A /sys in which the device that holds `folder` is partition 2 of an NVMe drive on node 1.
class FakeSys {
 public:
  explicit FakeSys(const TestFolder& folder) : root_(folder.file("root")) {
    struct stat status {};
    EXPECT_EQ(::stat(folder.path().c_str(), &status), 0);
    const std::string drive = root_ + "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme3/nvme3n1";
    write(drive + "/nvme3n1p2/partition", "2");
    write(drive + "/queue/rotational", "0");
    write(drive + "/wwid", "eui.0025385b21404321");
    write(drive + "/device/model", "ACME SSD 9000/x           ");
    write(drive + "/device/serial", "S4EW-01 ");
    write(root_ + "/sys/devices/pci0000:00/0000:01:00.0/numa_node", "1");
    const std::string link =
        fmt::format("{}/sys/dev/block/{}:{}", root_, major(status.st_dev), minor(status.st_dev));
    std::filesystem::create_directories(std::filesystem::path(link).parent_path());
    std::filesystem::create_symlink(drive + "/nvme3n1p2", link);
  }
  const std::string& root() const { return root_; }

 private:
  static void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text << "\n";
  }
  std::string root_;
};

TEST(ProbeIdentity, ReadsTheDriveBehindAPartition) {
  const TestFolder folder;
  const FakeSys sys(folder);
  const StorageIdentity identity = identify_storage(folder.path(), sys.root());
  EXPECT_EQ(identity.device, "nvme3n1");
  EXPECT_EQ(identity.model, "ACME SSD 9000/x");
  EXPECT_EQ(identity.serial, "S4EW-01");
  EXPECT_EQ(identity.numa_node, 1);
  EXPECT_EQ(identity.rotational, false);
  EXPECT_GT(identity.free_space.count(), 0);
  EXPECT_THAT(identity.key, StartsWith("ACME-SSD-9000-x-S4EW-01-" + identity.file_system));
  EXPECT_EQ(identity.key, storage_key(folder.path(), sys.root()));
  EXPECT_FALSE(identity.wear.percent_used);  // there is no such drive here
  EXPECT_THAT(identity.wear.unknown, HasSubstr("/dev/nvme3n1"));
}

TEST(ProbeIdentity, WithoutADeviceTheFileSystemIsTheKey) {
  const TestFolder folder;
  const StorageIdentity identity = identify_storage(folder.path(), folder.file("nothing"));
  EXPECT_EQ(identity.device, "");
  EXPECT_EQ(identity.numa_node, -1);
  EXPECT_FALSE(identity.rotational);
  EXPECT_THAT(identity.key, MatchesRegex("[A-Za-z0-9._-]+"));
  EXPECT_THAT(identity.wear.unknown, HasSubstr("no block device"));
  EXPECT_THROW(identify_storage("/no/such/folder"), InputError);
}

TEST(ProbeIdentity, DifferentFileSystemsHaveDifferentKeys) {
  if (!std::filesystem::exists("/dev/shm")) {
    GTEST_SKIP() << "there is no /dev/shm";
  }
  const TestFolder folder;
  if (file_system_of(folder.path()) == "tmpfs") {
    GTEST_SKIP() << "the folder of tests is on tmpfs";
  }
  EXPECT_NE(storage_key(folder.path()), storage_key("/dev/shm"));
}

TEST(ProbeIdentity, KeysAreSafeFileNames) {
  EXPECT_EQ(sanitize_key("Samsung SSD 990 PRO"), "Samsung-SSD-990-PRO");
  EXPECT_EQ(sanitize_key("../../etc/passwd"), "etc-passwd");
  EXPECT_EQ(sanitize_key(" /a//b\n"), "a-b");
  EXPECT_EQ(sanitize_key("größe"), "gr-e");
  EXPECT_EQ(sanitize_key("..."), "");
  EXPECT_EQ(sanitize_key(std::string(500, 'a')).size(), 128U);
}

TEST(ProbeIdentity, WearIsUnknownWithAReason) {
  EXPECT_THAT(read_wear("sda").unknown, HasSubstr("not an NVMe device"));
  EXPECT_THAT(read_wear("nvme99n1").unknown, HasSubstr("/dev/nvme99n1: No such file"));
}

}  // namespace
}  // namespace headrace::aio
