#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/model/checkpoint_test_util.h"

namespace headrace::model {
namespace {

const char* const kGoodHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
    R"("c":{"dtype":"I64","shape":[0,5],"data_offsets":[26,26]}})";

std::map<std::string, TensorEntry> read_header(const TempFolder& folder, const std::string& bytes) {
  const InputFile file(folder.write("x.safetensors", bytes));
  return read_safetensors_header(file);
}

TEST(Safetensors, ReadsEntries) {
  const TempFolder folder;
  const std::string header = kGoodHeader;
  const auto tensors = read_header(folder, safetensors_bytes(header + "  ", std::string(26, 'x')));
  ASSERT_EQ(tensors.size(), 3U);
  const TensorEntry& a = tensors.at("a");
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.count, Elements(6));
  EXPECT_EQ(a.size, Bytes(24));
  EXPECT_EQ(a.begin, 8 + static_cast<int64_t>(header.size()) + 2);
  EXPECT_EQ(a.path, folder.file("x.safetensors"));
  EXPECT_EQ(tensors.at("b").count, Elements(1));
  EXPECT_EQ(tensors.at("b").begin, a.begin + 24);
  EXPECT_EQ(tensors.at("c").count, Elements(0));
}

struct HostileCase {
  const char* name;
  const char* header;
  std::vector<std::string> expected;
};

class SafetensorsHostile : public ::testing::TestWithParam<HostileCase> {};

TEST_P(SafetensorsHostile, IsRefused) {
  const TempFolder folder;
  std::vector<std::string> expected = GetParam().expected;
  expected.push_back(folder.file("x.safetensors"));
  const std::string bytes = safetensors_bytes(GetParam().header, std::string(64, 'x'));
  expect_error<InputError>([&] { read_header(folder, bytes); }, expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsHostile,
    ::testing::Values(
        HostileCase{"NotJson", "{\"a\": nonsense}", {"not valid JSON"}},
        HostileCase{"NotAnObject", "[1, 2]", {"the header is not a JSON object"}},
        HostileCase{"JustANumber", "12", {"not a JSON object"}},
        HostileCase{"UnfinishedJson", R"({"a":{"dtype":"F32")", {"not valid JSON"}},
        HostileCase{"InvalidUtf8", "{\"\xff\xfe\":{}}", {"not valid JSON"}},
        HostileCase{"TensorIsANumber", R"({"a":5})", {"\"a\"", "expected an object"}},
        HostileCase{"TensorIsAnArray", R"({"a":[5]})", {"\"a\""}},
        HostileCase{"DtypeMissing",
                    R"({"a":{"shape":[1],"data_offsets":[0,4]}})",
                    {"\"a\"", "\"dtype\" is missing"}},
        HostileCase{"DtypeUnknown",
                    R"({"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}})",
                    {"\"a\"", "F128", "BF16"}},
        HostileCase{"DtypeIsANumber",
                    R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,16]}})",
                    {"\"a\"", "not supported"}},
        HostileCase{"ShapeMissing",
                    R"({"a":{"dtype":"F32","data_offsets":[0,4]}})",
                    {"\"a\"", "\"shape\" is missing"}},
        HostileCase{"ShapeNegative",
                    R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
                    {"\"a\"", "-1"}},
        HostileCase{"ShapeFraction",
                    R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})",
                    {"\"a\"", "1.5"}},
        HostileCase{"ShapeOverflows",
                    R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                    {"\"a\"", "4294967296"}},
        HostileCase{"BytesOverflow",
                    R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})",
                    {"\"a\"", "4611686018427387904"}},
        HostileCase{"BeyondInt64",
                    R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})",
                    {"\"a\"", "18446744073709551615"}},
        HostileCase{"BeyondDouble",
                    R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}})",
                    {"not valid JSON"}},
        HostileCase{"TooManyDimensions",
                    R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],)"
                    R"("data_offsets":[0,4]}})",
                    {"\"a\"", "16 dimensions"}},
        HostileCase{"OffsetsMissing",
                    R"({"a":{"dtype":"F32","shape":[1]}})",
                    {"\"a\"", "\"data_offsets\" is missing"}},
        HostileCase{"OffsetsThree",
                    R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})",
                    {"\"a\"", "[0, 4, 8]"}},
        HostileCase{"OffsetsReversed",
                    R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})",
                    {"\"a\"", "[8, 4]"}},
        HostileCase{"OffsetsBeyondFile",
                    R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[64,68]}})",
                    {"\"a\"", "[64, 68]", "64 bytes"}},
        HostileCase{"OffsetsHuge",
                    R"({"a":{"dtype":"U8","shape":[9223372036854775807],)"
                    R"("data_offsets":[0,9223372036854775807]}})",
                    {"\"a\"", "outside the file"}},
        HostileCase{"SizeDisagrees",
                    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
                    {"\"a\"", "[2]", "2 elements of 4 bytes in 4 bytes"}},
        HostileCase{"Overlap",
                    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                    {"\"a\"", "\"b\"", "overlap"}},
        HostileCase{"SameBytes",
                    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                    {"overlap"}},
        HostileCase{"DuplicateTensor",
                    R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                    {"\"a\"", "twice"}},
        HostileCase{"DuplicateProperty",
                    R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})",
                    {"\"a\"", "\"shape\" appears twice"}},
        HostileCase{"DuplicateMetadata", R"({"__metadata__":{},"__metadata__":{}})", {"twice"}},
        HostileCase{
            "Nested", R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", {"\"a\""}}),
    [](const auto& hostile) { return std::string(hostile.param.name); });

TEST(Safetensors, DeepNestingIsRefusedEarly) {
  const TempFolder folder;
  const std::string deep = R"({"a":)" + std::string(1'000'000, '[');
  expect_error<InputError>([&] { read_header(folder, safetensors_bytes(deep, "")); }, {"\"a\""});
}

TEST(Safetensors, LengthIsChecked) {
  const TempFolder folder;
  const auto with_length = [](uint64_t length) {
    return bytes_of(std::vector<uint64_t>{length}) + std::string(kGoodHeader) +
           std::string(26, 'x');
  };
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{100'000'001},
                                uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}}) {
    expect_error<InputError>([&] { read_header(folder, with_length(length)); },
                             {"the header claims " + std::to_string(length) + " bytes"});
  }
}

TEST(Safetensors, HeaderAboveTheLimitIsRefusedEvenIfItIsThere) {
  const TempFolder folder;
  const std::string path =
      folder.write("x.safetensors", bytes_of(std::vector<uint64_t>{100'000'001}));
  std::filesystem::resize_file(path, 200'000'000);  // sparse
  const InputFile file(path);
  expect_error<InputError>([&] { read_safetensors_header(file); }, {"100000001", "100000000"});
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TempFolder folder;
  const std::string whole = safetensors_bytes(kGoodHeader, std::string(26, 'x'));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(read_header(folder, whole.substr(0, size)), InputError) << size;
  }
  EXPECT_NO_THROW(read_header(folder, whole));
}

TEST(Safetensors, DamagedHeadersNeverDoWorseThanInputError) {
  const TempFolder folder;
  const std::string whole = safetensors_bytes(kGoodHeader, std::string(26, 'x'));
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 1 + round % 3; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    try {
      for (const auto& [name, entry] : read_header(folder, damaged)) {
        ASSERT_LE(entry.begin + entry.size.count(), static_cast<int64_t>(damaged.size()));
        ASSERT_EQ(entry.size, bytes_for(entry.count, entry.dtype));
      }
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1500);
}

TEST(Safetensors, OpeningWhatIsNotAFile) {
  const TempFolder folder;
  expect_error<InputError>([&] { InputFile(folder.file("none")); },
                           {folder.file("none"), "No such"});
  expect_error<InputError>([&] { InputFile(folder.path()); },
                           {folder.path(), "not a regular file"});
}

TEST(Safetensors, WrittenHeaderReadsBack) {
  const TempFolder folder;
  const std::vector<PlannedTensor> planned = {{"z.first \"quoted\"", DType::bf16, {3}, Bytes(6)},
                                              {"a.second", DType::f32, {2, 2}, Bytes(16)}};
  const std::string header = make_safetensors_header(planned);
  EXPECT_EQ(header.size() % 8, 0U);
  const auto tensors = read_header(folder, header + std::string(22, 'x'));
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors.at("z.first \"quoted\"").begin, static_cast<int64_t>(header.size()));
  EXPECT_EQ(tensors.at("a.second").begin, static_cast<int64_t>(header.size()) + 6);
  EXPECT_EQ(tensors.at("a.second").shape, (std::vector<int64_t>{2, 2}));
}

}  // namespace
}  // namespace headrace::model
