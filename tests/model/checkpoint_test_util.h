#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/checkpoint.h"

namespace headrace::model {

/// A folder for one test, removed at its end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "headrace-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("mkdtemp failed");
    }
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream out(file(name), std::ios::binary);
    out << bytes;
    return file(name);
  }

 private:
  std::string path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Bytes of a safetensors file with this header text, whatever it says.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return bytes_of(std::vector<uint64_t>{header.size()}) + header + data;
}

/// Expects an error of type E whose text contains every one of `parts`.
template <class E, class Action>
void expect_error(const Action& action, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one with " << ::testing::PrintToString(parts);
  } catch (const E& error) {
    for (const std::string& part : parts) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  }
}

/// A network of a few thousand parameters.
inline ModelConfig little_config() {
  ModelConfig config;
  config.vocab_size = 97;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.max_positions = 128;
  return config;
}

/// A value for each element that every dtype holds exactly.
inline float test_value(const std::string& name, int64_t index) {
  const auto mixed = (std::hash<std::string>()(name) + static_cast<uint64_t>(index) * 37) % 255;
  return (static_cast<float>(mixed) - 127.0F) / 64.0F;
}

/// Fills packed elements of a module with test_value() of the parameters.
inline void fill_test_values(const ModuleSpec& module, Elements first, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = first.count() + static_cast<int64_t>(i);
    for (const ParameterSpec& parameter : module.parameters) {
      const int64_t index = at - parameter.offset.count();
      if (index >= 0 && index < parameter.count.count()) {
        out[i] = test_value(parameter.name, parameter.part().element(index));
      }
    }
  }
}

inline void write_test_model(const std::string& folder, const ModelConfig& config,
                             const CheckpointWriter::Options& options) {
  const auto modules = module_specs(config);
  CheckpointWriter writer(folder, config, modules, options);
  for (const ModuleSpec& module : modules) {
    writer.write_module(module, [&](Elements first, std::span<float> out) {
      fill_test_values(module, first, out);
    });
  }
  writer.finish();
}

inline void expect_test_model(const std::string& folder, const ModelConfig& config) {
  const CheckpointReader reader(folder);
  const auto modules = module_specs(config);
  reader.check(modules);
  for (const ModuleSpec& module : modules) {
    for (const ParameterSpec& parameter : module.parameters) {
      std::vector<float> values(static_cast<size_t>(parameter.count.count()));
      reader.read_f32(parameter.name, Elements(0), values);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], test_value(parameter.name, static_cast<int64_t>(i)))
            << parameter.name << " " << i;
      }
    }
  }
}

}  // namespace headrace::model
