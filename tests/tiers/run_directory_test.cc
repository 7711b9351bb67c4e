#include "tiers/run_directory.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/tiers/store_fixture.h"

namespace headrace::tiers {
namespace {

namespace fs = std::filesystem;
using test::StoreTest;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

std::string locked_memory() {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("VmLck")) {
      return line;
    }
  }
  return "no VmLck";
}

class RunDirectoryTest : public StoreTest {
 protected:
  std::string create_error() {
    return test::message_of<InputError>([&] { ExtentStore::create(options_, io_); });
  }
};

TEST_F(RunDirectoryTest, SaysWhatItIs) {
  make(2);
  ASSERT_EQ(store_->directories().size(), 2U);
  const fs::path second = store_->directories()[1];
  EXPECT_EQ(second.filename(), "headrace-test");
  EXPECT_EQ(text_of(second / "RUN"), "headrace run directory\nformat 2\nrun test\npath 1 of 2\n");
  EXPECT_THAT(text_of(second / "LOCK"), HasSubstr("process " + std::to_string(::getpid())));
}

TEST_F(RunDirectoryTest, RefusesARunIdInUse) {
  make(1);
  write("a", 4096, 1);
  EXPECT_THAT(create_error(), AllOf(HasSubstr("in use"), HasSubstr("headrace-test"),
                                    HasSubstr("process " + std::to_string(::getpid()))));
  expect_value("a", 4096, 1);
  options_.run_id = "other";
  EXPECT_NE(ExtentStore::create(options_, io_), nullptr);
}

TEST_F(RunDirectoryTest, RefusesAnEarlierRun) {
  options_.keep_on_close = true;
  make(1);
  write("a", 4096, 1, true);
  store_->commit(3, {});
  store_.reset();
  EXPECT_EQ(catalog().generation, 3U);
  EXPECT_THAT(create_error(), HasSubstr("earlier run"));
  EXPECT_EQ(catalog().generation, 3U);
}

TEST_F(RunDirectoryTest, RefusesAForeignFolder) {
  options_.paths = {folder_ / "a", folder_ / "b"};
  const fs::path foreign = fs::path(folder_ / "b") / "headrace-test";
  fs::create_directories(foreign);
  std::ofstream(foreign / "data-0") << "precious";
  EXPECT_THAT(create_error(), HasSubstr("not made by Headrace"));
  EXPECT_EQ(text_of(foreign / "data-0"), "precious");
  EXPECT_FALSE(fs::exists(fs::path(folder_ / "a") / "headrace-test"))
      << "what was made on the first path is gone again";
}

TEST_F(RunDirectoryTest, RemovesOnlyWhatItMade) {
  make(2);
  write("a", 4 << 20, 1, true);
  store_->commit(1, {});
  const auto directories = store_->directories();
  std::ofstream(fs::path(directories[1]) / "notes.txt") << "mine";
  store_.reset();
  EXPECT_FALSE(fs::exists(directories[0]));
  EXPECT_EQ(text_of(fs::path(directories[1]) / "notes.txt"), "mine");
  EXPECT_EQ(std::distance(fs::directory_iterator(directories[1]), fs::directory_iterator()), 1);
}

TEST_F(RunDirectoryTest, RemovesTheFoldersMadeForItWhereTheyAreEmpty) {
  options_.run_id = "a";
  for (const bool is_shared : {false, true}) {
    const fs::path parent = fs::path(folder_.path()) / "drive" / "runs";
    options_.paths = {parent.string()};
    store_ = ExtentStore::create(options_, io_);
    if (is_shared) {
      std::ofstream(parent / "notes.txt") << "mine";
    }
    store_.reset();
    EXPECT_EQ(fs::exists(parent / "notes.txt"), is_shared);
    EXPECT_EQ(fs::exists(parent.parent_path()), is_shared);
  }
  options_.paths = {folder_ / "drive"};  // was there before
  fs::remove_all(folder_ / "drive/runs");
  ExtentStore::create(options_, io_).reset();
  EXPECT_TRUE(fs::is_empty(folder_ / "drive"));
}

TEST_F(RunDirectoryTest, RefusesBadOptions) {
  options_.paths = {folder_.path()};
  for (const std::string& id :
       std::vector<std::string>{"a/b", "..//", "a b", "x\n", std::string(200, 'x')}) {
    options_.run_id = id;
    EXPECT_THAT(create_error(), HasSubstr("run id")) << id;
  }
  options_.run_id = "";
  options_.weights = {1, 2};
  EXPECT_THAT(create_error(), HasSubstr("weights"));
  options_.weights = {0};
  EXPECT_THAT(create_error(), HasSubstr("weight"));
  options_.weights = {};
  options_.disk_budget = Bytes(0);
  EXPECT_THAT(create_error(), HasSubstr("disk budget"));
  options_.disk_budget = Bytes(1 << 20);
  options_.paths = {folder_.path(), folder_.path() + "/."};
  EXPECT_THAT(create_error(), HasSubstr("twice"));
  options_.paths = {};
  EXPECT_THAT(create_error(), HasSubstr("at least one path"));
  std::ofstream(folder_ / "file") << "x";
  options_.paths = {folder_ / "file"};
  EXPECT_THAT(create_error(), HasSubstr("cannot be used as a folder"));
}

TEST(RunDirectory, MakesDifferentRunIds) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    ids.insert(make_run_id());
  }
  EXPECT_EQ(ids.size(), 100U);
}

TEST_F(RunDirectoryTest, CyclesLeaveNothingBehind) {
  options_.run_id.clear();
  const auto cycle = [&] {
    make(2);
    write("a", 1 << 20, 1, true);
    store_->commit(1, {});
    store_.reset();
  };
  cycle();  // what RocksDB opens once per process
  const size_t descriptors = open_descriptors();
  const std::string locked = locked_memory();
  for (int i = 0; i < 50; ++i) {
    cycle();
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(locked_memory(), locked);
  for (const std::string& path : options_.paths) {
    EXPECT_FALSE(fs::exists(path)) << path;
  }
}

}  // namespace
}  // namespace headrace::tiers
