// The committed corpus through the same functions that are fuzzed: no input that was ever a
// finding is one again.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "fuzz/targets.h"

namespace headrace::fuzz {
namespace {

namespace fs = std::filesystem;

struct Input {
  std::string name;
  std::string bytes;
};

class CorpusTest : public ::testing::TestWithParam<Target> {
 protected:
  CorpusTest() {
    set_log_level(LogLevel::error);
    google::protobuf::SetLogHandler(nullptr);  // what cannot be parsed is no news here
    const fs::path folder =
        fs::path(HEADRACE_SOURCE_DIR) / "tests/fuzz/corpus" / std::string(GetParam().name);
    for (const fs::path& path : fs::directory_iterator(folder)) {
      std::ifstream file(path, std::ios::binary);
      inputs_.push_back({path.filename(), {std::istreambuf_iterator<char>(file), {}}});
    }
    std::sort(inputs_.begin(), inputs_.end(),
              [](const Input& a, const Input& b) { return a.name < b.name; });
  }
  ~CorpusTest() override { set_log_level(LogLevel::info); }

  std::vector<Input> inputs_;
};

TEST_P(CorpusTest, IsAcceptedOrRefused) {
  int accepted = 0;
  int refused = 0;
  for (const Input& input : inputs_) {
    SCOPED_TRACE(input.name);
    bool is_accepted = false;
    EXPECT_NO_THROW(is_accepted = accepts(GetParam(), input.bytes));
    // What is made by hand says in its name what it is.
    if (input.name.starts_with("valid")) {
      EXPECT_TRUE(is_accepted);
    } else if (input.name.starts_with("bad")) {
      EXPECT_FALSE(is_accepted);
    }
    ++(is_accepted ? accepted : refused);
  }
  EXPECT_GT(accepted, 0) << "the corpus must reach what lies behind the first check";
  EXPECT_GT(refused, 0);
}

/// A few changes to an input: bytes replaced, removed, repeated, taken from another input.
std::string mutated(const std::vector<Input>& inputs, Random& random) {
  std::string text = inputs[random.below(inputs.size())].bytes;
  for (uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const size_t at = random.below(text.size() + 1);
    const size_t length = std::min<size_t>(random.below(16), text.size() - at);
    const std::string& other = inputs[random.below(inputs.size())].bytes;
    switch (random.below(4)) {
      case 0:
        std::for_each_n(text.begin() + static_cast<int64_t>(at), length,
                        [&](char& byte) { byte = static_cast<char>(random.below(256)); });
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      default:
        text.replace(at, length, other.substr(random.below(other.size() + 1), 16));
    }
  }
  return text;
}

/// A little of what scripts/fuzz.sh does for minutes, in every test run.
TEST_P(CorpusTest, MutationsAreAcceptedOrRefused) {
  Random random(1, 13);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string input = mutated(inputs_, random);
    ASSERT_NO_THROW(refused += accepts(GetParam(), input) ? 0 : 1) << "round " << round;
  }
  EXPECT_GT(refused, 100);
}

INSTANTIATE_TEST_SUITE_P(Targets, CorpusTest, ::testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(target.param.name); });

TEST(FuzzTargets, AreFoundByName) {
  for (const Target& target : targets()) {
    EXPECT_EQ(find_target(target.name), &target);
  }
  EXPECT_EQ(find_target("nothing"), nullptr);
}

}  // namespace
}  // namespace headrace::fuzz
