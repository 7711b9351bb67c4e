#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "proto/config_parser.h"

namespace headrace::proto {
namespace {

constexpr const char* kSeed = R"({
  // every kind of value
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1e-1,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100, "warmup_type": "log"}},
  "bfloat16": {"enabled": true}, "amp": {"enabled": false, "x": {"y": [1, {"z": null}]}},
  "zero_optimization": {"stage": 3, "cpu_offload_param": true, "sub_group_size": 1e8,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/d", "pipeline_read": true}},
  "aio": {"thread_count": 2, "block_size": 1048576},
  /* own */ "headrace": {"device_memory": "64MiB", "nvme_path": ["/a", "/b"], "seed": 7}
})";

/// Either parsed or refused with an InputError; nothing else may happen.
void expect_no_crash(const std::string& text) {
  try {
    parse_config(text, "fuzz");
  } catch (const InputError& error) {
    EXPECT_LT(std::string(error.what()).size(), 50'000U);
  }
}

TEST(ConfigFuzz, SeedIsValid) {
  EXPECT_NO_THROW(parse_config(kSeed, "seed"));
}

TEST(ConfigFuzz, MutatedBytes) {
  Random random(1, 0);
  const std::string alphabet = "{}[]\",:.-+e0129 \n/*\\utfnaN\xc3\xff";
  for (int round = 0; round < 6000; ++round) {
    std::string text = kSeed;
    const uint64_t edits = 1 + random.below(6);
    for (uint64_t i = 0; i < edits; ++i) {
      const uint64_t at = random.below(text.size());
      switch (random.below(4)) {
        case 0:
          text.erase(at, 1 + random.below(8));
          break;
        case 1:
          text[at] = alphabet[random.below(alphabet.size())];
          break;
        case 2:
          text.insert(at, 1, alphabet[random.below(alphabet.size())]);
          break;
        default:
          text.insert(at, text.substr(random.below(text.size()), random.below(30)));
          break;
      }
    }
    expect_no_crash(text);
  }
}

/// Swaps whole values, so that most texts stay valid JSON and reach the schema.
TEST(ConfigFuzz, MutatedValues) {
  const std::vector<std::string> values = {"null",
                                           "true",
                                           "-1",
                                           "0",
                                           "1e400",
                                           "1e308",
                                           "-1e308",
                                           "9223372036854775808",
                                           "\"\"",
                                           "\"auto\"",
                                           "[]",
                                           "{}",
                                           "[[[]]]",
                                           "{\"type\": 1}",
                                           "{\"enabled\": \"auto\"}",
                                           "\"\\u0000\"",
                                           "1.5",
                                           "[1, 2, 3]",
                                           "{\"params\": {}}",
                                           "\"nvme\"",
                                           "-0.0",
                                           "1e-320"};
  const std::string seed = kSeed;
  std::vector<size_t> colons;
  for (size_t i = 0; i < seed.size(); ++i) {
    if (seed[i] == ':') {
      colons.push_back(i + 1);
    }
  }
  for (const size_t begin : colons) {
    for (const std::string& value : values) {
      size_t end = begin;
      int depth = 0;
      bool in_text = false;
      while (end < seed.size() &&
             (depth > 0 || in_text || (seed[end] != ',' && seed[end] != '}'))) {
        in_text ^= seed[end] == '"';
        depth += seed[end] == '{' || seed[end] == '[' ? 1 : 0;
        depth -= seed[end] == '}' || seed[end] == ']' ? 1 : 0;
        ++end;
      }
      expect_no_crash(seed.substr(0, begin) + value + seed.substr(end));
    }
  }
}

TEST(ConfigFuzz, RandomBytes) {
  Random random(2, 0);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random.below(200), ' ');
    for (char& c : text) {
      c = static_cast<char>(random.next_u32());
    }
    expect_no_crash(text);
  }
}

TEST(ConfigFuzz, TruncatedAnywhere) {
  const std::string seed = kSeed;
  for (size_t length = 0; length < seed.size(); ++length) {
    EXPECT_THROW(parse_config(seed.substr(0, length), "cut"), InputError) << length;
  }
}

}  // namespace
}  // namespace headrace::proto
