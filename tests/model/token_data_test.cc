#include "model/token_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "model/token_data_shuffle.h"
#include "tests/model/checkpoint_test_util.h"

namespace headrace::model {
namespace {

TokenDataOptions options_of(int64_t seq, int64_t vocab) {
  TokenDataOptions options;
  options.seq = seq;
  options.vocab_size = vocab;
  options.shuffle = false;
  return options;
}

std::string token_tensors(const std::string& dtype, const std::string& shape,
                          const std::string& ids, const std::string& labels) {
  const auto tensor = [&](const char* name, size_t begin, size_t size) {
    return "\"" + std::string(name) + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(begin + size) +
           "]}";
  };
  std::string header = "{" + tensor("input_ids", 0, ids.size());
  if (!labels.empty()) {
    header += "," + tensor("labels", ids.size(), labels.size());
  }
  return safetensors_bytes(header + "}", ids + labels);
}

// The brute-force reference for streams: the formula of the header, on vectors in memory.
void expect_stream(const TokenData& data, const std::vector<int64_t>& ids,
                   const std::vector<int64_t>& labels, int64_t seq) {
  const auto count = static_cast<int64_t>(ids.size() - 1) / seq;
  ASSERT_EQ(data.training_sequences(), count);
  const TokenBatch batch = data.training_batch(0, count);
  ASSERT_EQ(batch.ids.size(), static_cast<size_t>(count * seq));
  int64_t counted = 0;
  for (size_t t = 0; t < batch.ids.size(); ++t) {
    ASSERT_EQ(batch.ids[t], ids[t]) << t;
    ASSERT_EQ(batch.labels[t], labels[t + 1]) << t;
    counted += labels[t + 1] != -100 ? 1 : 0;
  }
  EXPECT_EQ(batch.counted_labels, counted);
}

template <class T>
std::vector<T> cast(const std::vector<int64_t>& values) {
  return {values.begin(), values.end()};
}

std::vector<int64_t> numbers(int64_t count, int64_t vocab) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = (i * i + 7 * i) % vocab;
  }
  return values;
}

TEST(TokenData, PlainText) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += static_cast<char>(i * 11);
  }
  std::vector<int64_t> bytes;
  for (const char c : text) {
    bytes.push_back(static_cast<uint8_t>(c));
  }
  TokenDataOptions options = options_of(16, 259);
  options.byte_level = true;
  expect_stream(*TokenData::open(folder.write("a.txt", text), options), bytes, bytes, 16);
  options.byte_level = false;
  expect_error<InputError>([&] { TokenData::open(folder.file("a.txt"), options); },
                           {"a.txt", "byte-level", "prepare_data.py"});
}

TEST(TokenData, RawBin) {
  const TempFolder folder;
  const auto small = numbers(401, 50257);
  const auto large = numbers(401, 128256);
  const std::string path16 = folder.write("16.bin", bytes_of(cast<uint16_t>(small)));
  const std::string path32 = folder.write("32.bin", bytes_of(cast<uint32_t>(large)));
  expect_stream(*TokenData::open(path16, options_of(8, 50257)), small, small, 8);
  expect_stream(*TokenData::open(path16, options_of(400, 65536)), small, small, 400);
  expect_stream(*TokenData::open(path32, options_of(33, 128256)), large, large, 33);
  TokenDataOptions options = options_of(8, 128256);
  options.bin_dtype = "uint16";
  expect_stream(*TokenData::open(path16, options), small, small, 8);
  options.bin_dtype = "int8";
  expect_error<InputError>([&] { TokenData::open(path16, options); }, {"int8", "uint16"});
  folder.write("odd.bin", std::string(101, 'x'));
  expect_error<InputError>([&] { TokenData::open(folder.file("odd.bin"), options_of(8, 65536)); },
                           {"odd.bin", "101 bytes"});
}

TEST(TokenData, LlmcBin) {
  const TempFolder folder;
  const auto header = [](int32_t magic, int32_t version, int32_t count) {
    std::vector<int32_t> words(256);
    words[0] = magic;
    words[1] = version;
    words[2] = count;
    return bytes_of(words);
  };
  const auto small = numbers(300, 50257);
  const auto large = numbers(300, 128256);
  const std::string path16 =
      folder.write("16.bin", header(20240520, 1, 300) + bytes_of(cast<uint16_t>(small)));
  const std::string path32 =
      folder.write("32.bin", header(20240801, 7, 300) + bytes_of(cast<uint32_t>(large)));
  expect_stream(*TokenData::open(path16, options_of(8, 50257)), small, small, 8);
  expect_stream(*TokenData::open(path32, options_of(8, 128256)), large, large, 8);
  TokenDataOptions options = options_of(8, 128256);
  options.bin_dtype = "uint16";
  expect_error<InputError>([&] { TokenData::open(path32, options); }, {"32.bin", "uint32"});
  const std::string lying =
      folder.write("lie.bin", header(20240520, 1, 301) + bytes_of(cast<uint16_t>(small)));
  expect_error<InputError>([&] { TokenData::open(lying, options_of(8, 50257)); },
                           {"lie.bin", "301 tokens", "1624 bytes"});
}

TEST(TokenData, SafetensorsStreamInEveryIntegerType) {
  const TempFolder folder;
  const auto ids = numbers(101, 120);
  auto labels = ids;
  for (size_t i = 0; i < labels.size(); i += 3) {
    labels[i] = -100;
  }
  const std::string path = folder.file("x.safetensors");
  const auto check = [&](const std::string& dtype, const std::string& id_bytes,
                         const std::string& label_bytes, const std::vector<int64_t>& expected) {
    folder.write("x.safetensors", token_tensors(dtype, "[101]", id_bytes, label_bytes));
    expect_stream(*TokenData::open(path, options_of(7, 120)), ids, expected, 7);
  };
  check("I64", bytes_of(ids), bytes_of(labels), labels);
  check("I32", bytes_of(cast<int32_t>(ids)), bytes_of(cast<int32_t>(labels)), labels);
  check("I64", bytes_of(ids), "", ids);
  check("U32", bytes_of(cast<uint32_t>(ids)), "", ids);
  check("U16", bytes_of(cast<uint16_t>(ids)), "", ids);
  check("U8", bytes_of(cast<uint8_t>(ids)), "", ids);
}

// Rows against the reference: labels shift inside the row, and end with -100 unless there is one
// more.
void expect_rows(const TempFolder& folder, int64_t rows, int64_t length, int64_t seq) {
  const auto ids = numbers(rows * length, 1000);
  auto labels = ids;
  for (size_t i = 0; i < labels.size(); i += 5) {
    labels[i] = -100;
  }
  const std::string shape = "[" + std::to_string(rows) + "," + std::to_string(length) + "]";
  folder.write("r.safetensors", token_tensors("I64", shape, bytes_of(ids), bytes_of(labels)));
  const auto data = TokenData::open(folder.file("r.safetensors"), options_of(seq, 1000));
  const int64_t per_row = length / seq;
  ASSERT_EQ(data->training_sequences(), rows * per_row);
  const TokenBatch batch = data->training_batch(0, rows * per_row);
  size_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t t = 0; t < per_row * seq; ++t, ++at) {
      const auto in_file = static_cast<size_t>(row * length + t);
      ASSERT_EQ(batch.ids[at], ids[in_file]);
      ASSERT_EQ(batch.labels[at], t + 1 < length ? labels[in_file + 1] : -100);
    }
  }
}

TEST(TokenData, SafetensorsRows) {
  const TempFolder folder;
  expect_rows(folder, 6, 16, 16);
  expect_rows(folder, 6, 17, 16);
  expect_rows(folder, 3, 48, 16);
  expect_rows(folder, 3, 49, 16);
  expect_rows(folder, 1, 16, 16);
  expect_rows(folder, 5, 4, 1);
  const auto ids = numbers(60, 100);
  const std::string path =
      folder.write("x.safetensors", token_tensors("I64", "[3,20]", bytes_of(ids), ""));
  expect_error<InputError>([&] { TokenData::open(path, options_of(16, 100)); },
                           {"[3, 20]", "16", "Set the sequence length to 20"});
  expect_error<InputError>([&] { TokenData::open(path, options_of(32, 100)); }, {"[3, 20]", "32"});
  folder.write("x.safetensors", token_tensors("I64", "[1,60]", bytes_of(ids), ""));
  expect_stream(*TokenData::open(path, options_of(16, 100)), ids, ids, 16);
}

/// Labels of a stream with the end tokens' taken out, and the borders of documents.
TEST(TokenData, PackedSequences) {
  const TempFolder folder;
  constexpr int32_t kEnd = 7;
  auto ids = numbers(400, 100);
  std::replace(ids.begin(), ids.end(), int64_t{kEnd}, int64_t{1});
  for (const size_t at : {15, 16, 40, 95, 96, 250}) {
    ids[at] = kEnd;
  }
  auto labels = ids;
  labels[20] = -100;
  const std::string path =
      folder.write("p.safetensors", token_tensors("I64", "[400]", bytes_of(ids), bytes_of(labels)));
  TokenDataOptions options = options_of(16, 100);
  options.document_end = kEnd;
  options.window = 3;
  const auto data = TokenData::open(path, options);
  const TokenBatch batch = data->training_batch(0, data->training_sequences());
  int64_t counted = 0;
  for (size_t t = 0; t < batch.ids.size(); ++t) {
    EXPECT_EQ(batch.ids[t], ids[t]);
    EXPECT_EQ(batch.labels[t], ids[t] == kEnd ? -100 : labels[t + 1]) << t;
    counted += batch.labels[t] != -100 ? 1 : 0;
  }
  EXPECT_EQ(batch.counted_labels, counted);
  EXPECT_EQ(counted, static_cast<int64_t>(batch.ids.size()) - 7);
  const DocumentBorders expected = find_documents(batch.ids, 16, kEnd, 3);
  EXPECT_EQ(batch.documents.begins, expected.begins);
  EXPECT_EQ(batch.documents.seen_from, expected.seen_from);
  EXPECT_EQ(batch.documents.seen_until, expected.seen_until);
  EXPECT_EQ(batch.documents.begins[41], 9);  // behind token 40, in the sequence from 32 on
  options.document_end.reset();
  EXPECT_TRUE(TokenData::open(path, options)->training_batch(0, 2).documents.begins.empty());
}

TEST(TokenData, WarnsWhereNoDocumentEnds) {
  const TempFolder folder;
  const std::string path =
      folder.write("p.safetensors", token_tensors("I64", "[64]", bytes_of(numbers(64, 50)), ""));
  TokenDataOptions options = options_of(16, 100);
  for (const int32_t end : {60, 0}) {  // numbers() begins with 0
    options.document_end = end;
    ::testing::internal::CaptureStderr();
    TokenData::open(path, options);
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(told.find("token 60, which ends a document") != std::string::npos, end == 60) << told;
  }
}

TEST(TokenData, SafetensorsErrors) {
  const TempFolder folder;
  const auto open = [&](const std::string& bytes) {
    TokenData::open(folder.write("x.safetensors", bytes), options_of(4, 100));
  };
  const std::string ids = bytes_of(numbers(12, 100));
  expect_error<InputError>([&] { open(token_tensors("F32", "[24]", ids, "")); },
                           {"input_ids", "F32"});
  expect_error<InputError>([&] { open(token_tensors("I64", "[2,3,2]", ids, "")); }, {"[2, 3, 2]"});
  expect_error<InputError>(
      [&] {
        open(safetensors_bytes(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab"));
      },
      {"no tensor input_ids", "\"x\""});
  const std::string header = R"({"input_ids":{"dtype":"U8","shape":[2,8],"data_offsets":[0,16]},)"
                             R"("labels":{"dtype":"U8","shape":[16],"data_offsets":[16,32]}})";
  expect_error<InputError>([&] { open(safetensors_bytes(header, std::string(32, '\1'))); },
                           {"labels", "[16]", "[2, 8]"});
}

TEST(TokenData, ValuesOutsideTheVocabulary) {
  const TempFolder folder;
  std::vector<uint16_t> ids(100, 5);
  ids[63] = 777;
  const std::string path = folder.write("x.bin", bytes_of(ids));
  expect_error<InputError>([&] { TokenData::open(path, options_of(10, 777)); },
                           {path, "token 63 is 777", "0 to 776"});
  EXPECT_NO_THROW(TokenData::open(path, options_of(10, 778)));
  std::vector<int64_t> labels(100, -100);
  labels[20] = -1;
  const std::string masked =
      token_tensors("I64", "[100]", bytes_of(numbers(100, 9)), bytes_of(labels));
  folder.write("x.safetensors", masked);
  expect_error<InputError>(
      [&] { TokenData::open(folder.file("x.safetensors"), options_of(10, 9)); },
      {"label 20 is -1"});
  std::vector<int64_t> ignored_id = numbers(100, 9);
  ignored_id[3] = -100;
  folder.write("x.safetensors", token_tensors("I64", "[100]", bytes_of(ignored_id), ""));
  expect_error<InputError>(
      [&] { TokenData::open(folder.file("x.safetensors"), options_of(10, 9)); },
      {"token 3 is -100"});
}

TEST(TokenData, LargeFilesAreCheckedWhenRead) {
  const TempFolder folder;
  const std::string path = folder.write("x.bin", "");
  constexpr int64_t kTokens = (int64_t{1} << 25) + 1000;
  std::filesystem::resize_file(path, kTokens * 2);  // sparse: all tokens are 0
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(2 * (kTokens - 500));
  file.write("\xff\xff", 2);
  file.close();
  const auto data = TokenData::open(path, options_of(100, 1000));
  EXPECT_EQ(data->training_batch(0, 2).ids, std::vector<int32_t>(200, 0));
  const int64_t bad = (kTokens - 500) / 100;
  expect_error<InputError>([&] { data->training_batch(bad, 1); },
                           {"token " + std::to_string(kTokens - 500) + " is 65535"});
}

TEST(TokenData, TooLittleData) {
  const TempFolder folder;
  const std::string path = folder.write("x.bin", bytes_of(std::vector<uint16_t>(16, 1)));
  expect_error<InputError>([&] { TokenData::open(path, options_of(16, 100)); },
                           {"16 tokens", "needs 17"});
  EXPECT_EQ(TokenData::open(path, options_of(15, 100))->training_sequences(), 1);
  TokenDataOptions options = options_of(15, 100);
  options.validation_fraction = 0.1;
  expect_error<InputError>([&] { TokenData::open(path, options); }, {"validation"});
  folder.write("empty.bin", "");
  expect_error<InputError>([&] { TokenData::open(folder.file("empty.bin"), options_of(16, 100)); },
                           {"0 tokens", "needs 17"});
  expect_error<InputError>([&] { TokenData::open(folder.file("none.bin"), options_of(16, 100)); },
                           {"none.bin", "No such file"});
  expect_error<InputError>([&] { TokenData::open(folder.path(), options_of(16, 100)); },
                           {"not a regular file"});
  expect_error<InputError>([&] { TokenData::open(path, options_of(0, 100)); }, {"sequence length"});
  folder.write("x.jsonl", "{}");
  expect_error<InputError>([&] { TokenData::open(folder.file("x.jsonl"), options_of(1, 100)); },
                           {".jsonl", "prepare_data.py"});
}

TEST(TokenData, ValidationIsTheEndOfTheFile) {
  const TempFolder folder;
  const auto ids = numbers(201, 1000);
  const std::string path = folder.write("x.bin", bytes_of(cast<uint16_t>(ids)));
  TokenDataOptions options = options_of(10, 1000);
  options.shuffle = true;
  options.validation_fraction = 0.26;
  const auto data = TokenData::open(path, options);
  ASSERT_EQ(data->validation_sequences(), 5);
  ASSERT_EQ(data->training_sequences(), 15);
  const TokenBatch batch = data->validation_batch(1, 3);
  for (size_t t = 0; t < 30; ++t) {
    EXPECT_EQ(batch.ids[t], ids[160 + t]);
    EXPECT_EQ(batch.labels[t], ids[161 + t]);
  }
  EXPECT_THROW(data->validation_batch(3, 3), InternalError);
  for (const double fraction : {-0.1, 1.0, std::nan("")}) {
    options.validation_fraction = fraction;
    expect_error<InputError>([&] { TokenData::open(path, options); }, {"validation fraction"});
  }
  options.validation_fraction = 0.001;
  EXPECT_EQ(TokenData::open(path, options)->validation_sequences(), 1);
}

// First token of each sequence of an epoch; the data is made so that it is the sequence's number.
std::vector<int32_t> order_of(const TokenData& data, int64_t first, int64_t count) {
  const TokenBatch batch = data.training_batch(first, count);
  std::vector<int32_t> order;
  for (size_t i = 0; i < batch.ids.size(); i += 4) {
    order.push_back(batch.ids[i]);
  }
  return order;
}

TEST(TokenData, ShuffledOrderIsAPermutationPerEpochAndResumable) {
  const TempFolder folder;
  constexpr int64_t kCount = 250;
  std::vector<uint16_t> ids;
  for (uint16_t i = 0; i < kCount; ++i) {
    ids.insert(ids.end(), 4, i);
  }
  ids.push_back(0);
  const std::string path = folder.write("x.bin", bytes_of(ids));
  TokenDataOptions options = options_of(4, 1000);
  options.shuffle = true;
  options.seed = 9;
  const auto data = TokenData::open(path, options);
  const auto all = order_of(*data, 0, 3 * kCount);
  std::vector<int32_t> in_order(kCount);
  std::iota(in_order.begin(), in_order.end(), 0);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> part(all.begin() + epoch * kCount, all.begin() + (epoch + 1) * kCount);
    EXPECT_NE(part, in_order);
    std::sort(part.begin(), part.end());
    EXPECT_EQ(part, in_order);
  }
  EXPECT_FALSE(std::equal(all.begin(), all.begin() + kCount, all.begin() + kCount));

  const auto reopened = TokenData::open(path, options);
  for (const int64_t first : {1, 249, 250, 251, 600}) {
    EXPECT_EQ(order_of(*reopened, first, 17),
              std::vector<int32_t>(all.begin() + first, all.begin() + first + 17));
  }
  options.seed = 10;
  EXPECT_NE(order_of(*TokenData::open(path, options), 0, kCount),
            std::vector<int32_t>(all.begin(), all.begin() + kCount));
}

TEST(TokenData, ThreadsReadTheSame) {
  const TempFolder folder;
  const auto ids = numbers(4001, 1000);
  TokenDataOptions options = options_of(10, 1000);
  options.shuffle = true;
  const auto data = TokenData::open(folder.write("x.bin", bytes_of(cast<uint16_t>(ids))), options);
  const TokenBatch expected = data->training_batch(0, 400);
  std::vector<TokenBatch> batches(4);
  std::vector<std::thread> threads;
  threads.reserve(batches.size());
  for (TokenBatch& batch : batches) {
    threads.emplace_back([&] { batch = data->training_batch(0, 400); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const TokenBatch& batch : batches) {
    EXPECT_EQ(batch.ids, expected.ids);
    EXPECT_EQ(batch.labels, expected.labels);
  }
}

TEST(Permutation, IsABijection) {
  for (int64_t count = 1; count < 400; ++count) {
    const Permutation permutation(count, 3, 4);
    std::vector<bool> seen(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t image = permutation(i);
      ASSERT_GE(image, 0);
      ASSERT_LT(image, count);
      ASSERT_FALSE(seen[static_cast<size_t>(image)]) << count << " " << i;
      seen[static_cast<size_t>(image)] = true;
    }
  }
  EXPECT_THROW(Permutation(10, 0, 0)(10), InternalError);
  EXPECT_THROW(Permutation(0, 0, 0), InternalError);
}

TEST(Permutation, WorksOnHugeRanges) {
  constexpr int64_t kCount = (int64_t{1} << 62) + 12345;
  const Permutation permutation(kCount, 3, 4);
  std::set<int64_t> images;
  for (int64_t i = 0; i < 1000; ++i) {
    images.insert(permutation(kCount - 1 - i));
  }
  EXPECT_EQ(images.size(), 1000U);
  EXPECT_GE(*images.begin(), 0);
  EXPECT_LT(*images.rbegin(), kCount);
}

TEST(Permutation, LooksRandom) {
  // Position and image are uncorrelated, and neighbours do not stay neighbours.
  constexpr int64_t kCount = 10007;
  const Permutation permutation(kCount, 1, 0);
  double covariance = 0;
  int64_t neighbours = 0;
  const double mean = (kCount - 1) / 2.0;
  for (int64_t i = 0; i < kCount; ++i) {
    covariance += (static_cast<double>(i) - mean) * (static_cast<double>(permutation(i)) - mean);
    neighbours += i > 0 && std::abs(permutation(i) - permutation(i - 1)) == 1 ? 1 : 0;
  }
  const double variance = (static_cast<double>(kCount) * kCount - 1) / 12;
  EXPECT_LT(std::abs(covariance / kCount / variance), 5 / std::sqrt(static_cast<double>(kCount)));
  EXPECT_LT(neighbours, 15);  // 2 are expected
}

}  // namespace
}  // namespace headrace::model
