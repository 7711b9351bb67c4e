#pragma once

#include <cstdint>
#include <fstream>
#include <ios>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headrace::model {

/// Raw reading of one tensor of a safetensors file written by the golden script.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : file_(path, std::ios::binary) {
    uint64_t header_size = 0;
    file_.read(reinterpret_cast<char*>(&header_size), sizeof header_size);
    std::string text(header_size, ' ');
    file_.read(text.data(), static_cast<std::streamsize>(header_size));
    header_ = nlohmann::json::parse(text);
    data_begin_ = sizeof header_size + header_size;
  }

  template <class T>
  std::vector<T> read(const std::string& name) {
    const auto offsets = header_.at(name).at("data_offsets").get<std::vector<uint64_t>>();
    std::vector<T> values((offsets[1] - offsets[0]) / sizeof(T));
    file_.seekg(static_cast<std::streamoff>(data_begin_ + offsets[0]));
    file_.read(reinterpret_cast<char*>(values.data()),
               static_cast<std::streamsize>(offsets[1] - offsets[0]));
    return values;
  }

 private:
  std::ifstream file_;
  nlohmann::json header_;
  uint64_t data_begin_ = 0;
};

}  // namespace headrace::model
