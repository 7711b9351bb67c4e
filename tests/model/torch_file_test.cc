// Files in tests/golden/data/torch are torch.save's own (tests/golden/make_torch.py).
#include "model/torch_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "support/temporary_folder.h"

namespace headrace::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden(const std::string& name) {
  return std::string(HEADRACE_SOURCE_DIR) + "/tests/golden/data/torch/" + name + ".pt";
}

std::vector<float> values_of(const TorchFile& file) {
  std::vector<float> values(static_cast<size_t>(file.count().count()));
  file.read_f32(Elements(0), values);
  return values;
}

/// What make_torch.py put in.
std::vector<float> expected(int first = 0) {
  std::vector<float> values;
  for (int i = first; i < 12; ++i) {
    values.push_back(static_cast<float>(i) / 4 - 1);
  }
  return values;
}

std::string refusal(const std::string& path) {
  try {
    const TorchFile file(path);
    return "accepted";
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(TorchFile, ReadsWhatTorchWrites) {
  for (const char* name : {"dictionary", "tensor", "bf16", "f16", "parameter"}) {
    SCOPED_TRACE(name);
    const TorchFile file(golden(name));
    EXPECT_THAT(file.shape(), ElementsAre(3, 4));
    EXPECT_EQ(values_of(file), expected());
    EXPECT_FALSE(file.number());
  }
  EXPECT_THAT(TorchFile(golden("flat")).shape(), ElementsAre(12));
  const TorchFile view(golden("view"));
  EXPECT_THAT(view.shape(), ElementsAre(2, 4));
  EXPECT_EQ(values_of(view), expected(4));
  std::vector<float> two(2);
  view.read_f32(Elements(3), two);
  EXPECT_EQ(two, (std::vector<float>{0.75F, 1.0F}));
  EXPECT_THROW(view.read_f32(Elements(7), two), InputError);
  EXPECT_EQ(TorchFile(golden("number")).number(), 7);
  EXPECT_THAT(values_of(TorchFile(golden("number_as_tensor"))), ElementsAre(7.0F));
}

TEST(TorchFile, RefusesWhatItDoesNotUnderstandWithoutRunningIt) {
  EXPECT_THAT(refusal(golden("transposed")), HasSubstr("contiguous"));
  EXPECT_THAT(refusal(golden("integers")), HasSubstr("LongStorage"));
  EXPECT_THAT(refusal(golden("nothing")), HasSubstr("'param'"));
  EXPECT_THAT(refusal(golden("evil")), AllOf(HasSubstr("print"), HasSubstr("evil.pt")));
  EXPECT_THAT(refusal(std::string(HEADRACE_SOURCE_DIR) + "/README.md"), HasSubstr("torch.save"));
}

TEST(TorchFile, ReadsItsOwn) {
  const headrace::test::TemporaryFolder folder;
  std::vector<float> values(3 * 700'001);
  std::iota(values.begin(), values.end(), -5.0F);
  write_torch_parameter(folder / "a.pt", {3, 700'001}, [&](Elements first, std::span<float> out) {
    std::copy_n(values.begin() + first.count(), out.size(), out.begin());
  });
  const TorchFile file(folder / "a.pt");
  EXPECT_THAT(file.shape(), ElementsAre(3, 700'001));
  EXPECT_EQ(values_of(file), values);
  for (const int64_t number : {int64_t{0}, int64_t{255}, int64_t{-1}, int64_t{1} << 31,
                               int64_t{1} << 40, -(int64_t{1} << 31) - 1}) {
    write_torch_number(folder / "n.pt", number);
    EXPECT_EQ(TorchFile(folder / "n.pt").number(), number);
  }
}

/// Damaged files: an error or a tensor, never a crash, whatever is changed or cut off.
TEST(TorchFile, SurvivesDamage) {
  const headrace::test::TemporaryFolder folder;
  Random random(1, 1);
  int refused = 0;
  for (const char* name : {"dictionary", "bf16", "parameter", "number"}) {
    std::ifstream file(golden(name), std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(file), {}};
    for (int round = 0; round < 500; ++round) {
      std::string text = whole;
      if (round % 5 == 0) {
        text.resize(random.below(text.size()));
      }
      for (uint64_t flips = random.below(4); flips > 0 && !text.empty(); --flips) {
        text[random.below(text.size())] = static_cast<char>(random.below(256));
      }
      const std::string path = folder / "damaged.pt";
      std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
      try {
        const TorchFile damaged(path);
        ASSERT_LE(damaged.count().count(), 1 << 20);
        values_of(damaged);
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace headrace::model
