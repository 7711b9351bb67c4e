#include "model/partial_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/checkpoint_file.h"
#include "tests/support/temporary_folder.h"

namespace headrace::model {
namespace {

namespace fs = std::filesystem;

class PartialFolderTest : public testing::Test {
 protected:
  /// What the folder above holds, and what a file of the target says.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(above_.path())) {
      found.push_back(entry.path().filename());
    }
    return found;
  }
  std::string text() const { return read_text_file(target_ + "/file", Bytes(100)); }

  void write(const std::string& content, bool is_whole) {
    PartialFolder folder(target_);
    replace_file(folder.path() + "/file", content);
    fs::create_directory(folder.path() + "/" + content);
    if (is_whole) {
      folder.rename_to_target();
    }
  }

  test::TemporaryFolder above_;
  std::string target_ = above_.path() + "/folder";
};

TEST_F(PartialFolderTest, IsThereOnceItIsWhole) {
  write("first", false);
  EXPECT_EQ(names(), std::vector<std::string>());
  write("second", true);
  EXPECT_EQ(names(), std::vector<std::string>{"folder"});
  EXPECT_EQ(text(), "second");
}

TEST_F(PartialFolderTest, ReplacesWhatIsThereAsAWhole) {
  write("first", true);
  write("second", false);
  EXPECT_EQ(text(), "first");
  write("third", true);
  EXPECT_EQ(names(), std::vector<std::string>{"folder"});
  EXPECT_EQ(text(), "third");
  EXPECT_FALSE(fs::exists(target_ + "/first"));
}

TEST_F(PartialFolderTest, NamesWhereItCannotBe) {
  target_ = above_.path() + "/missing/folder";
  EXPECT_THROW(PartialFolder{target_}, IoError);
}

}  // namespace
}  // namespace headrace::model
