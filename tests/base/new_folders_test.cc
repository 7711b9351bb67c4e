#include "base/new_folders.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

TEST(NewFolders, AreRemovedWhereTheyAreEmpty) {
  const test::TemporaryFolder folder;
  for (const char* end : {"", "/", "/.", "/../c"}) {
    NewFolders made;
    EXPECT_FALSE(made.make((folder / "a/b/c") + end));
    EXPECT_TRUE(made.any());
    EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(NewFolders, StayWithWhatIsInThem) {
  const test::TemporaryFolder folder;
  {
    NewFolders made;
    EXPECT_FALSE(made.make(folder / "a/b/c"));
    std::ofstream(folder / "a/b/file") << "mine";
  }
  EXPECT_FALSE(fs::exists(folder / "a/b/c"));
  EXPECT_TRUE(fs::exists(folder / "a/b/file"));
}

TEST(NewFolders, ThoseThatWereThereStay) {
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "a/b");
  {
    NewFolders made;
    EXPECT_FALSE(made.make(folder / "a/b"));
    EXPECT_FALSE(made.any());
    NewFolders more;
    EXPECT_FALSE(more.make(folder / "a/b/c"));
  }
  EXPECT_TRUE(fs::is_empty(folder / "a/b"));
}

TEST(NewFolders, AFileInTheWayIsAnErrorThatLeavesNothing) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "file") << "mine";
  EXPECT_EQ(NewFolders().make(folder / "file"), std::errc::not_a_directory);
  EXPECT_EQ(NewFolders().make(folder / "file/a/b"), std::errc::not_a_directory);
  EXPECT_EQ(NewFolders().make(""), std::errc::invalid_argument);
  EXPECT_EQ(NewFolders().make("/proc/headrace/a"), std::errc::no_such_file_or_directory);
  EXPECT_EQ(NewFolders().make(folder / ("a/" + std::string(300, 'x'))),
            std::errc::filename_too_long);
  fs::remove(folder / "file");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace headrace
